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
      var wide = box.scrollWidth > box.clientWidth;
      if (wide) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
      box.classList.toggle("sideways", wide);
    });
    document.querySelectorAll("article code").forEach(function (code) {
      if (code.textContent.length <= 12) code.classList.add("whole");
    });
  }
  window.addEventListener("hashchange", reveal);
  window.addEventListener("resize", scrollable);
  document.addEventListener("toggle", scrollable, true);
  window.addEventListener("DOMContentLoaded", function () { reveal(); scrollable(); });
})();
