"use strict";

// A click on a place plays its recording from a second before it.
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-second]");
  const audio = button?.closest("section").querySelector("audio");
  if (!audio) return;
  const second = Math.max(Number(button.dataset.second) - 1, 0);
  for (const other of document.querySelectorAll("audio")) if (other !== audio) other.pause();
  if (audio.readyState === 0) audio.addEventListener("loadedmetadata", () => { audio.currentTime = second; }, { once: true });
  audio.currentTime = second;
  audio.play().catch(() => {});
});
