// The photo as the model sees it: pixels, where it looked, patches that are painted away.

const COLOURS = [[0, 0, 4], [40, 11, 84], [101, 21, 110], [159, 42, 99], [212, 72, 66], [245, 125, 21], [250, 193, 39], [252, 255, 164]];
const SIDE = 720; // pixels of the canvas, at least, so that lines between patches are thin

export class Picture {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed; // called when patches come or go
    this.grid = [1, 1];
    this.hidden = new Set();
    this.looked = null;
    this.strength = 0.5;
    this.taking = true; // the brush paints away, or brings back
    this.image = null;
    this.cursor = null;
    this.last = null;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { this.last = null; });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => { this.cursor = null; this.draw(); });
  }

  // The image's own pixels, its grid and where the model looked.
  show(image, grid, looked) {
    this.image = image;
    this.looked = looked;
    this.grid = grid;
    const scale = Math.max(1, Math.ceil(SIDE / Math.max(image.width, image.height)));
    this.canvas.width = image.width * scale;
    this.canvas.height = image.height * scale;
    this.draw();
  }

  // On another grid the patches are gone whose centres were.
  regrid(grid) {
    const [rows, columns] = this.grid;
    const moved = new Set();
    for (let row = 0; row < grid[0]; row++) {
      for (let column = 0; column < grid[1]; column++) {
        const there = Math.floor(((row + 0.5) * rows) / grid[0]) * columns + Math.floor(((column + 0.5) * columns) / grid[1]);
        if (this.hidden.has(there)) moved.add(row * grid[1] + column);
      }
    }
    this.hidden = moved;
    this.grid = grid;
    this.looked = null;
    this.draw();
  }

  draw() {
    if (!this.image) return;
    const pen = this.canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
    if (this.looked && this.strength > 0) this.heat(pen);
    pen.fillStyle = "#000";
    for (const patch of this.hidden) pen.fillRect(...this.box(patch));
    if (this.cursor !== null) {
      pen.strokeStyle = "#fff";
      pen.lineWidth = 6;
      pen.strokeRect(...this.box(this.cursor));
      pen.strokeStyle = "#c2540a";
      pen.lineWidth = 3;
      pen.strokeRect(...this.box(this.cursor));
    }
  }

  heat(pen) {
    const least = Math.min(...this.looked);
    const span = Math.max(...this.looked) - least || 1;
    pen.globalAlpha = this.strength;
    this.looked.forEach((value, patch) => {
      pen.fillStyle = colour((value - least) / span);
      pen.fillRect(...this.box(patch));
    });
    pen.globalAlpha = 1;
  }

  // On whole pixels, so that no line shows between neighbours.
  box(patch) {
    const [rows, columns] = this.grid;
    const row = Math.floor(patch / columns);
    const column = patch % columns;
    const { width, height } = this.canvas;
    const left = Math.floor((column * width) / columns);
    const top = Math.floor((row * height) / rows);
    return [left, top, Math.floor(((column + 1) * width) / columns) - left, Math.floor(((row + 1) * height) / rows) - top];
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = (value, count) => Math.min(count - 1, Math.max(0, Math.floor(value * count)));
    return [place((event.clientY - box.top) / box.height, this.grid[0]), place((event.clientX - box.left) / box.width, this.grid[1])];
  }

  press(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.at(event);
    this.brush([this.last]);
  }

  // A quick hand jumps over patches: every one between two places counts.
  drag(event) {
    if (!this.last) return;
    const here = this.at(event);
    const steps = Math.max(Math.abs(here[0] - this.last[0]), Math.abs(here[1] - this.last[1]), 1);
    const way = [];
    for (let step = 1; step <= steps; step++) {
      way.push([0, 1].map((axis) => Math.round(this.last[axis] + ((here[axis] - this.last[axis]) * step) / steps)));
    }
    this.last = here;
    this.brush(way);
  }

  brush(places) {
    let different = false;
    for (const [row, column] of places) {
      const patch = row * this.grid[1] + column;
      if (this.hidden.has(patch) === this.taking) continue;
      different = true;
      if (this.taking) this.hidden.add(patch); else this.hidden.delete(patch);
    }
    if (different) { this.draw(); this.changed(); }
  }

  key(event) {
    const [rows, columns] = this.grid;
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (move) {
      const from = this.cursor === null ? [0, 0] : [Math.floor(this.cursor / columns), this.cursor % columns];
      const [row, column] = this.cursor === null ? from : [(from[0] + move[0] + rows) % rows, (from[1] + move[1] + columns) % columns];
      this.cursor = row * columns + column;
    } else if (event.key === " " && this.cursor !== null) {
      if (!this.hidden.delete(this.cursor)) this.hidden.add(this.cursor);
      this.changed();
    } else return;
    event.preventDefault();
    this.draw();
  }
}

// 0 to 1 -> a colour that rises in lightness, so that it reads in grey.
function colour(share) {
  const place = share * (COLOURS.length - 1);
  const low = Math.min(Math.floor(place), COLOURS.length - 2);
  const mixed = COLOURS[low].map((value, i) => Math.round(value + (COLOURS[low + 1][i] - value) * (place - low)));
  return `rgb(${mixed.join(" ")})`;
}
