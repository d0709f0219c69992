// While a request is open, its life is asked for again and again, and put in the place of what is shown.
"use strict";

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
        if (fresh && fresh.outerHTML !== shown.outerHTML) shown.replaceWith(fresh);
      }
    } catch {
      // The service is away for a moment: the next time will tell.
    }
  }
  wait();
}

function wait() {
  const shown = document.getElementById("life");
  if (shown && shown.dataset.live) setTimeout(refresh, Number(shown.dataset.every));
}

wait();
