/* What pages do beyond links and forms: local times, keys, windows of long timelines, live parts.
   Every page can be read, and every form be sent, without this file. */
(() => {
  "use strict";
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const root = document.body.dataset.root;

  // Times. Ages are counted by the engine's clock: that of this machine may be wrong.
  const skew = Number(document.body.dataset.now) / 1000 - Date.now();
  const clock = new Intl.DateTimeFormat(undefined, {
    month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const zone = $("#zone");
  if (zone) zone.textContent = `times in ${clock.resolvedOptions().timeZone}`;
  function span(milliseconds) {
    const seconds = Math.round(Math.abs(milliseconds) / 1000);
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
    return `${Math.floor(seconds / 86400)} d`;
  }
  // What is to come has a second unit: two days must not turn into "in 1 d" at once.
  function remaining(milliseconds) {
    const seconds = Math.round(Math.abs(milliseconds) / 1000);
    const rest = seconds % (seconds < 86400 ? 3600 : 86400) * 1000;
    return seconds < 3600 || rest < (seconds < 86400 ? 60000 : 3600000)
      ? span(milliseconds) : `${span(milliseconds)} ${span(rest)}`;
  }
  function tellTime(element) {
    const at = new Date(element.dateTime);
    const apart = Date.now() + skew - at;
    if (!element.title) element.title = at.toISOString().replace("T", " ").replace("Z", " UTC");
    const text = element.dataset.form === "clock" ? clock.format(at)
      : apart < 0 ? `in ${remaining(apart)}` : `${span(apart)} ago`;
    if (element.textContent !== text) element.textContent = text;
  }
  const tellTimes = (within = document) => $$("time[datetime]", within).forEach(tellTime);
  setInterval(() => document.hidden || tellTimes(), 1000);

  // Windows of long timelines: loaded when they come near, emptied when they are far away.
  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) load(target);
      else if (target.dataset.loaded) {
        target.replaceChildren();
        delete target.dataset.loaded;
      }
    }
  }, { rootMargin: "1500px" });
  async function load(window_) {
    if (window_.dataset.loaded) return;
    window_.dataset.loaded = "1";
    try {
      const answer = await fetch(window_.dataset.window);
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      if (!window_.dataset.loaded) return; // it was left meanwhile
      window_.innerHTML = text; // escaped by the server, like every page
      tellTimes(window_);
    } catch {
      delete window_.dataset.loaded;
      setTimeout(() => { // seen anew, it is loaded again
        near.unobserve(window_);
        if (!gone) near.observe(window_);
      }, 3000);
    }
  }
  const watchWindows = () => $$("[data-window]:not([data-watched])").forEach((each) => {
    each.dataset.watched = "1";
    near.observe(each);
  });

  // Live parts: htmx swaps them; here is said whether the page is up to date. A page that is opened
  // in the background waits until it is seen: a browser has six connections to a host.
  const live = $("#live");
  let stream = $("#stream");
  function follow() {
    if (!stream || document.hidden || stream.hasAttribute("hx-sse:connect")) return;
    stream.setAttribute("hx-sse:connect", stream.dataset.connect);
    htmx.process(stream);
  }
  addEventListener("load", () => setTimeout(follow));
  document.addEventListener("visibilitychange", follow);
  // The foot says at once that a page is not live. If that lasts, the page says it at its top.
  let lost = 0;
  function tellLive(on, text, notice = "#lost") {
    if (!live) return;
    if (on || notice === "#out") {
      clearTimeout(lost);
      lost = 0;
      $("#lost").hidden = true;
      $("#out").hidden = on;
    } else if (!gone && !lost && $("#out").hidden) {
      lost = setTimeout(() => {
        lost = 0;
        $("#lost").hidden = gone || document.hidden;
      }, 8000);
    }
    live.classList.toggle("on", on);
    live.classList.toggle("off", !on);
    live.textContent = text;
  }
  document.addEventListener("htmx:sse:after:connection", () => tellLive(true, "live"));
  function tellRefused(status) {
    if (isGone(status)) tellGone();
    else if (status === 401) tellLive(false, "logged out", "#out");
    else tellLive(false, "connecting …");
  }
  document.addEventListener("htmx:sse:error", ({ detail }) => tellRefused(detail.status));
  document.addEventListener("htmx:sse:close", () => gone || tellLive(false, "not live"));
  // htmx asks again after a stream has ended, but not after a first request that failed.
  function begin({ detail }) {
    if (detail.ctx?.sourceElement !== stream) return;
    tellRefused(detail.ctx.response?.status);
    setTimeout(() => {
      if (gone) return;
      const fresh = stream.cloneNode();
      fresh.removeAttribute("hx-sse:connect");
      fresh.removeAttribute("data-htmx-powered");
      stream.replaceWith(fresh);
      stream = fresh;
      follow();
    }, 5000);
  }
  document.addEventListener("htmx:response:error", begin);
  document.addEventListener("htmx:error", begin);
  document.addEventListener("gone", tellGone);

  // What the page is about was deleted. The stream is taken out, so that it does not ask again.
  let gone = false;
  const isGone = (status) => status === 404 || status === 410;
  function tellGone() {
    gone = true;
    tellLive(false, "deleted");
    $("#gone").hidden = false;
    $$("main form[method=post] button").forEach((each) => { each.disabled = true; });
    stream.remove();
  }
  document.addEventListener("htmx:sse:after:message", () => {
    tellTimes();
    watchWindows();
    mark(at);
    tellTitle();
  });
  function tellTitle() {
    const state = $("[data-title]");
    if (state) document.title = state.dataset.title;
  }

  // What was done is said once: not after a reload, nor to whom the address is sent.
  const address = new URL(location.href);
  if (address.searchParams.has("done")) {
    address.searchParams.delete("done");
    history.replaceState(history.state, "", address);
  }

  // Copy buttons.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "copied";
    } catch {
      button.textContent = "press Ctrl-C";
      getSelection().selectAllChildren(button.previousElementSibling || button);
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });

  // Menus close when something else is clicked; forms are sent once.
  document.addEventListener("click", (event) => {
    $$("details.menu[open]").forEach((each) => {
      if (!each.contains(event.target)) each.open = false;
    });
  });
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
  });
  addEventListener("pageshow", () => $$("form[data-sent]").forEach((each) => { delete each.dataset.sent; }));

  // Choosing rows of a list, one or all of them. The box of all sends what the others send.
  const boxes = (form) => [...form.elements].filter((each) => each.matches("td > [name=run]"));
  document.addEventListener("change", ({ target }) => {
    if (target.matches("[data-go]")) target.form.requestSubmit();
    if (target.name !== "run") return;
    if ("all" in target.dataset) boxes(target.form).forEach((each) => { each.checked = target.checked; });
    else tellAll(target.form);
  });
  function tellAll(form) {
    const all = $("[data-all]", form), chosen = boxes(form).filter((each) => each.checked).length;
    all.checked = chosen > 0 && chosen === boxes(form).length;
    all.indeterminate = chosen > 0 && !all.checked;
  }

  // Keys.
  let at = -1;
  const rows = () => $$("tr[data-href]");
  function mark(index) {
    rows().forEach((row, place) => row.classList.toggle("at", place === index));
  }
  function move(by) {
    const all = rows();
    if (!all.length) return;
    at = Math.max(0, Math.min(all.length - 1, at + by));
    mark(at);
    all[at].scrollIntoView({ block: "nearest" });
    $("a", all[at])?.focus({ preventScroll: true });
  }
  const PLACES = { o: "/", r: "/runs", w: "/workflows", a: "/approvals", q: "/queues", m: "/messages", s: "/schedules", k: "/workers", d: "/doctor" };
  let went = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      $$("details.menu[open]").forEach((each) => { each.open = false; $("summary", each).focus(); });
      if (event.target.matches("input, textarea, select")) event.target.blur();
      return;
    }
    if (event.target.closest("input:not([type=checkbox]), textarea, select, dialog")) return;
    if (Date.now() - went < 1200 && PLACES[event.key]) {
      location.href = root + PLACES[event.key];
      return;
    }
    const keys = {
      "/": () => $("input[type=search]") ? $("input[type=search]").focus() : (location.href = `${root}/runs`),
      j: () => move(1),
      k: () => move(-1),
      x: () => $("tr.at input[name=run]")?.click(),
      f: () => $(".chips a")?.focus(),
      g: () => { went = Date.now(); },
      n: () => $("a[rel=next]")?.click(),
      "?": () => $("#help")?.showModal(),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });

  tellTimes();
  watchWindows();
})();
