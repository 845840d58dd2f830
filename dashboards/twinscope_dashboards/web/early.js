// Before anything else: the plotting library is 5 MB, so an address of a view with plots asks for it
// while the page's own modules are on the way. plots.js takes it from here.
if (/^#\/(runs|compare)\/./.test(location.hash)) {
  const script = document.createElement("script");
  script.id = "plotly";
  script.src = "plotly.min.js";
  document.head.append(script);
}
