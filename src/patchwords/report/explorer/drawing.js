// Drawing: weights of patches as colours, over the photo and as small maps.

/** [r, g, b, ...] of a few stops -> 256 colours, RGBA. */
function rampOf(stops) {
  const last = stops.length / 3 - 1;
  const ramp = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * last;
    const stop = Math.min(Math.floor(place), last - 1);
    for (let c = 0; c < 3; c++) {
      const [from, to] = [stops[3 * stop + c], stops[3 * stop + 3 + c]];
      ramp[4 * i + c] = from + (to - from) * (place - stop);
    }
    ramp[4 * i + 3] = 255;
  }
  return ramp;
}

/** Share of the scale, 0 to 1, at which a weight stands. */
function placeOnScale(weight, largest, stretched) {
  const share = largest > 0 ? weight / largest : 0;
  return stretched ? Math.sqrt(share) : share;
}

/** A canvas with a pixel for each patch. */
function paintMap(canvas, weights, grid, ramp, stretched) {
  [canvas.height, canvas.width] = grid;
  const context = canvas.getContext("2d");
  const image = context.createImageData(grid[1], grid[0]);
  const largest = largestOf(weights);
  for (let i = 0; i < weights.length; i++) {
    const colour = 4 * Math.round(255 * placeOnScale(weights[i], largest, stretched));
    image.data.set(ramp.subarray(colour, colour + 4), 4 * i);
  }
  context.putImageData(image, 0, 0);
}

function largestOf(weights) {
  let largest = 0;
  for (const weight of weights) if (weight > largest) largest = weight;
  return largest;
}

/** The colours of the scale, from 0 to the largest weight. */
function paintScale(canvas, ramp) {
  [canvas.height, canvas.width] = [1, 256];
  canvas.getContext("2d").putImageData(new ImageData(ramp.slice(), 256, 1), 0, 0);
}

/** The photo with the map over it; the query's patch, or the one pointed at, is outlined. */
function paintPhoto(canvas, photo, map, opacity, grid, cell, pinned) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const height = Math.max(1, Math.round((width * photo.naturalHeight) / photo.naturalWidth));
  if (canvas.width !== width || canvas.height !== height) {
    [canvas.width, canvas.height] = [width, height];
  }
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = photo.naturalWidth > 64; // small images are their pixels
  context.imageSmoothingQuality = "high";
  context.drawImage(photo, 0, 0, width, height);
  context.globalCompositeOperation = "saturation"; // grey: all colour is then the map's
  context.globalAlpha = Math.min(1, 2 * opacity);
  context.fillStyle = "#888";
  context.fillRect(0, 0, width, height);
  context.globalCompositeOperation = "source-over";
  context.imageSmoothingEnabled = false;
  context.globalAlpha = opacity;
  context.drawImage(map, 0, 0, width, height);
  context.globalAlpha = 1;
  if (cell) outline(context, width, height, grid, cell, pinned ? 3 * ratio : 2 * ratio);
}

/** White within black is seen on every photo and every colour. */
function outline(context, width, height, grid, [row, column], line) {
  const [h, w] = [height / grid[0], width / grid[1]];
  const box = [column * w, row * h, w, h];
  context.lineWidth = 2 * line;
  context.strokeStyle = "#000";
  context.strokeRect(...box);
  context.lineWidth = line;
  context.strokeStyle = "#fff";
  context.strokeRect(...box);
}

/** An SVG element. */
function drawn(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/**
 * A dot for each layer and head at its distance, as in Figure 7 (right); distances: a row of [K]
 * for each layer. `choose(layer, head)` is called by a click.
 */
function drawDistances(svg, distances, largest, choose) {
  const [width, height, left, top, bottom] = [460, 190, 44, 10, 34];
  const x = (layer) => left + ((layer + 0.5) / distances.length) * (width - left - 6);
  const y = (far) => height - bottom - (far / largest) * (height - top - bottom);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [];
  for (const tick of ticksTo(largest)) {
    parts.push(drawn("line", { class: "grid", x1: left, x2: width, y1: y(tick), y2: y(tick) }));
    parts.push(drawn("text", { class: "end", x: left - 6, y: y(tick) + 4 }, String(tick)));
  }
  const every = Math.ceil(distances.length / 12);
  distances.forEach((row, layer) => {
    if (layer % every === 0) {
      const at = { class: "middle", x: x(layer), y: height - bottom + 16 };
      parts.push(drawn("text", at, String(layer + 1)));
    }
    row.forEach((far, head) => {
      const dot = drawn("circle", { class: "dot", cx: x(layer), cy: y(far), r: 3.5 });
      dot.dataset.place = `${layer} ${head}`;
      dot.append(drawn("title", {}, `layer ${layer + 1}, head ${head + 1}: ${far.toFixed(1)} pixels`));
      dot.addEventListener("click", () => choose(layer, head));
      parts.push(dot);
    });
  });
  const middle = left + (width - left) / 2;
  parts.push(drawn("text", { class: "middle", x: middle, y: height - 2 }, "layer"));
  svg.replaceChildren(...parts);
}

/** A few round numbers from 0 up. */
function ticksTo(largest) {
  const rough = largest / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((s) => s * power >= rough) * power;
  const ticks = [];
  for (let tick = 0; tick <= largest; tick += step) ticks.push(Number(tick.toPrecision(6)));
  return ticks;
}
