// Runs before the page is painted, so that a chosen theme does not flash.
try {
  const theme = localStorage.getItem("inferno.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // No storage: the system's theme.
}
