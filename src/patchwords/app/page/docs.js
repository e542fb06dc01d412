// /openapi.json as a page.

const add = (parent, name, text = "") => {
  const made = document.createElement(name);
  made.textContent = text;
  parent.append(made);
  return made;
};

function table(parent, head, rows) {
  if (!rows.length) return;
  const made = add(parent, "table");
  for (const [kind, cells] of [["th", head], ...rows.map((row) => ["td", row])]) {
    const line = add(made, "tr");
    for (const cell of cells) add(line, kind, cell);
  }
}

const here = location.origin;
document.getElementById("curl").textContent =
  `curl --form file=@photo.jpg '${here}/predict?top_k=3'\ncurl --header 'Content-Type: image/jpeg' --data-binary @photo.jpg ${here}/predict`;
const schema = await (await fetch("/openapi.json")).json();
for (const [path, methods] of Object.entries(schema.paths)) {
  for (const [method, about] of Object.entries(methods)) {
    const section = add(document.getElementById("routes"), "section");
    add(section, "h2", `${method.toUpperCase()} ${path}`);
    add(section, "p", about.summary);
    const bodies = Object.keys(about.requestBody?.content ?? {}).map((kind) => [kind, kind.startsWith("multipart") ? "the image in the field file" : "the image as the body"]);
    table(section, ["body", ""], bodies);
    table(section, ["parameter", "", "default"], (about.parameters ?? []).map((one) => [one.name, one.description ?? "", String(one.schema.default ?? "")]));
    table(section, ["status", ""], Object.entries(about.responses).map(([status, one]) => [status, one.description]));
  }
}
