// The crosshair: the values of the nearest moment, in every chart at once.
const charts = [...document.querySelectorAll("svg[data-chart]")].map((svg) => ({
  svg,
  data: JSON.parse(svg.dataset.chart),
  cross: svg.querySelector(".cross"),
  outputs: svg.closest("figure").querySelectorAll("output"),
}));

function show(index) {
  for (const { data, cross, outputs } of charts) {
    const known = index !== null && index < data.x.length;
    cross.style.visibility = known ? "visible" : "hidden";
    if (known) {
      cross.setAttribute("x1", data.x[index]);
      cross.setAttribute("x2", data.x[index]);
    }
    outputs.forEach((output, line) => {
      output.textContent = known ? data.values[line][index] : "";
    });
  }
}

for (const { svg, data } of charts) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    let nearest = 0;
    data.x.forEach((x, index) => {
      if (Math.abs(x - at) < Math.abs(data.x[nearest] - at)) nearest = index;
    });
    show(nearest);
  });
  svg.addEventListener("pointerleave", () => show(null));
}
