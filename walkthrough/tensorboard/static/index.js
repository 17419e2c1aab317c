// TensorBoard loads this module into the tab's frame; the page itself is a document of its own.
export async function render() {
  document.location.href = "page.html";
}
