// A button beside each command, for those who may run scripts; without it the command is selected by hand.
for (const box of document.querySelectorAll(".command")) {
  const text = box.querySelector("pre").textContent;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the command");
  button.addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(box.querySelector("pre"));
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected: press Ctrl-C";
    setTimeout(() => { button.textContent = "Copy"; }, 2500);
  });
  box.append(button);
}
