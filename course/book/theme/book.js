// Folds that hold what a link leads to open, so that the reader sees it; wide tables and code can be scrolled by keys.
(function () {
  function reveal() {
    var name = decodeURIComponent(window.location.hash.slice(1));
    var target = name && document.getElementById(name);
    for (var node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    if (target) target.scrollIntoView();
  }
  function scrollable() {
    document.querySelectorAll("pre, .table-wrapper, .output").forEach(function (box) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    });
  }
  window.addEventListener("hashchange", reveal);
  window.addEventListener("resize", scrollable);
  document.addEventListener("toggle", scrollable, true);
  window.addEventListener("DOMContentLoaded", function () { reveal(); scrollable(); });
})();
