// The colours that were chosen, before anything is drawn.
"use strict";
try {
  const chosen = localStorage.getItem("weir-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage the system's colours are used.
}
