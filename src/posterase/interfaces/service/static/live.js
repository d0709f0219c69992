// While a request is being run, its life is asked for again and again, and put in the place of what is shown.
"use strict";

const EVERY_MS = 1500;

async function refresh() {
  const shown = document.getElementById("life");
  if (!shown || !shown.dataset.live) return;
  if (!document.hidden) {
    try {
      const answer = await fetch(shown.dataset.live, { credentials: "same-origin", redirect: "error" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("life");
        if (fresh && !fresh.dataset.live) return location.reload();  // what can be done with it has changed too
        if (fresh && fresh.innerHTML !== shown.innerHTML) shown.replaceWith(fresh);
      }
    } catch {
      // The service is away for a moment: the next time will tell.
    }
  }
  setTimeout(refresh, EVERY_MS);
}

setTimeout(refresh, EVERY_MS);
