// Numbers: attention from its codes, rollout, distance. They know nothing of the page.
// Sizes: L layers, K heads that were kept, T tokens, N patches.
const MEAN = -1; // of the heads
const ALL = -1; // the query of a model without a class token: the mean over all tokens

/** Base64 of gzip -> Uint8Array */
async function unpack(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The attention of a model on a photo. */
class Attention {
  /**
   * codes: [L, K, T, T], c with a = c^2 / (sum of c^2 over the row); view: what the page says of
   * it: layers, kept, grid, prefix, size [H, W].
   */
  constructor(codes, view) {
    this.codes = codes;
    this.layers = view.layers;
    this.heads = view.kept;
    this.prefix = view.prefix;
    this.grid = view.grid;
    this.patch = [view.size[0] / view.grid[0], view.size[1] / view.grid[1]]; // in pixels
    this.patches = view.grid[0] * view.grid[1];
    this.tokens = view.prefix + this.patches;
    if (codes.length !== this.layers * this.heads * this.tokens ** 2) {
      throw new Error("the page is damaged: its attention has another size than it says");
    }
    this.scales = this.#sumRows(); // [L, K, T]
    this.means = this.#meanHeads(); // [L, T, T]
    this.distances = []; // as they are measured
  }

  #sumRows() {
    const { codes, tokens } = this;
    const scales = new Float32Array(codes.length / tokens);
    for (let row = 0, i = 0; row < scales.length; row++) {
      let sum = 0;
      for (const end = i + tokens; i < end; i++) sum += codes[i] * codes[i];
      scales[row] = 1 / sum;
    }
    return scales;
  }

  #meanHeads() {
    const { codes, heads, layers, scales, tokens } = this;
    const means = new Float32Array(layers * tokens * tokens);
    for (let layer = 0, row = 0, i = 0; layer < layers; layer++) {
      const start = layer * tokens * tokens;
      for (let head = 0; head < heads; head++) {
        let at = start;
        for (let query = 0; query < tokens; query++, row++) {
          const scale = scales[row] / heads;
          for (let key = 0; key < tokens; key++, at++, i++) {
            means[at] += codes[i] * codes[i] * scale;
          }
        }
      }
    }
    return means;
  }

  /** What a token, or all of them on average, attends to in a layer: Float32Array [T]. */
  row(layer, head, query) {
    const { tokens } = this;
    const weights = new Float32Array(tokens);
    if (query === ALL) {
      for (let q = 0; q < tokens; q++) this.#add(layer, head, q, 1 / tokens, weights);
    } else {
      this.#add(layer, head, query, 1, weights);
    }
    return weights;
  }

  /** weights += share * row of the query */
  #add(layer, head, query, share, weights) {
    const { codes, heads, means, scales, tokens } = this;
    if (head === MEAN) {
      const start = (layer * tokens + query) * tokens;
      for (let key = 0; key < tokens; key++) weights[key] += share * means[start + key];
    } else {
      const row = (layer * heads + head) * tokens + query;
      const start = row * tokens;
      const scale = share * scales[row];
      for (let key = 0; key < tokens; key++) {
        weights[key] += scale * codes[start + key] * codes[start + key];
      }
    }
  }

  /**
   * A token's row of Attention Rollout (Abnar and Zuidema, arXiv 2005.00928) over the first `depth`
   * layers: of the product of (A + I) / 2, A the mean of the heads; rows sum to 1 as they are.
   * A row needs no product of matrices: it goes down from the deepest layer to the first.
   */
  rollout(depth, query) {
    const { tokens } = this;
    let weights = new Float32Array(tokens);
    if (query === ALL) weights.fill(1 / tokens);
    else weights[query] = 1;
    for (let layer = depth - 1; layer >= 0; layer--) {
      const below = weights.map((weight) => weight / 2); // what the residual carries past
      for (let token = 0; token < tokens; token++) {
        if (weights[token]) this.#add(layer, MEAN, token, weights[token] / 2, below);
      }
      weights = below;
    }
    return weights;
  }

  /**
   * How far a head looks, in pixels: the mean over patches of sum_j A_ij |place_i - place_j|, the
   * class token left out and rows renormalised (Appendix D.7). Of the mean of heads: MEAN.
   */
  distance(layer, head) {
    const place = layer * (this.heads + 1) + head + 1;
    this.distances[place] ??= this.#measure(layer, head);
    return this.distances[place];
  }

  #measure(layer, head) {
    const { grid, patches, prefix } = this;
    const reach = this.#reach();
    let total = 0;
    for (let query = 0; query < patches; query++) {
      const weights = this.row(layer, head, prefix + query);
      const down = Math.floor(query / grid[1]);
      const across = query % grid[1];
      let far = 0;
      let sum = 0;
      for (let y = 0, key = prefix; y < grid[0]; y++) {
        const line = Math.abs(y - down) * grid[1];
        for (let x = 0; x < grid[1]; x++, key++) {
          far += weights[key] * reach[line + Math.abs(x - across)];
          sum += weights[key];
        }
      }
      // a patch that sees the class token alone, to 8 bits, looks nowhere else
      total += sum ? far / sum : 0;
    }
    return total / patches;
  }

  /** Pixels between patches that are a number of rows and columns apart: [h, w]. */
  #reach() {
    if (!this.reach) {
      const [rows, columns] = this.grid;
      this.reach = Float32Array.from({ length: rows * columns }, (_, i) =>
        Math.hypot(Math.floor(i / columns) * this.patch[0], (i % columns) * this.patch[1]),
      );
    }
    return this.reach;
  }
}
