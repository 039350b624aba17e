"use strict";
(() => {
  const story = JSON.parse(document.getElementById("story").textContent);
  // The start, then every step with what was held before it; tables change where the columns do.
  const moments = story.stages.flatMap((stage, number) => {
    const states = [{ ...stage.start, messages: [], received: [], encoded: [] }, ...stage.steps];
    return states.map((state, at) => ({ ...state, stage, shown: story.shown[number][at], was: story.shown[number][Math.max(0, at - 1)] }))
      .slice(number ? 1 : 0);
  });
  const steps = moments.slice(1);
  const ranks = [...Array(story.workers).keys()];
  const $ = (id) => document.getElementById(id);
  const PAUSE = 1500;
  let position = 0;
  let playing = 0;

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const columns = () => [...moments[position].stage.columns.keys()];
  const covers = (message, chunk) => message.start <= chunk && chunk < message.stop;

  // Arrows down keep to the right of a column and arrows up to its left, but only where some round has both.
  const down = (message) => message.target > message.source;
  const bothWays = steps.some((step) => step.messages.some((one) => step.messages.some(
    (other) => down(one) !== down(other) && one.start < other.stop && other.start < one.stop)));
  const onRight = (message) => down(message) || !bothWays;
  const reach = Math.max(1, ...steps.flatMap((step) => step.messages.map((message) => Math.abs(message.target - message.source))));
  const travels = (stage) => stage.steps.some((step) => step.messages.length > 0);
  const fullRoom = (stage) => !travels(stage) ? 6 : stage.columns.length === 1 ? Math.min(120, 36 + 10 * reach) : stage.columns.length <= 6 ? 42 : 30;

  let room = 0;

  // Denser until all columns are in view; what still does not fit scrolls, and says so.
  const LEVELS = [{ name: "", share: 1 }, { name: "compact", share: 0.6 }, { name: "compact tight", share: 0.4 }];

  const columnWidth = (column) => Math.min(56, Math.max(...moments.filter((moment) => moment.stage === moments[position].stage)
    .flatMap((moment) => ranks.flatMap((rank) => [moment.was[rank][column].length, moment.shown[rank][column].length]))));

  function makeTable() {
    const hosts = [...new Set(story.hosts)];
    const table = $("table");
    const stage = moments[position].stage;
    // "chunk 0": on a narrow screen the word stands in the corner.
    const heads = stage.columns.map((column) => column.match(/^(.*) (p?\d+)$/) ?? [column, "", column]);
    const head = element("tr", {}, ...(hosts.length > 1 ? [element("td")] : []), element("td", { class: "corner" }, heads[0][1]));
    for (const [, word, name] of heads) head.append(element("th", { scope: "col", class: "chunk" }, element("span", { class: "word" }, word && `${word} `), name));
    table.replaceChildren(element("thead", {}, head));
    for (const host of hosts) {
      const members = ranks.filter((rank) => story.hosts[rank] === host);
      const body = element("tbody", { class: "host" });
      members.forEach((rank, index) => {
        const row = element("tr");
        if (hosts.length > 1 && index === 0) row.append(element("th", { class: "host", rowspan: members.length, scope: "rowgroup" }, `host ${host}`));
        row.append(element("th", { class: "process", scope: "row" }, `p${rank}`), ...columns().map((column) => makeCell(rank, column)));
        body.append(row);
      });
      table.append(body);
    }
    table.classList.toggle("many", moments[0].shown[0].some((cell) => cell.includes(" ")));
  }

  const fits = () => $("board").scrollWidth <= $("board").clientWidth;

  function density(level) {
    const table = $("table");
    table.classList.remove("compact", "tight");
    table.classList.add(...level.name.split(" ").filter(Boolean));
    room = Math.round(fullRoom(moments[position].stage) * level.share);
    table.style.setProperty("--right", `${room}px`);
    table.style.setProperty("--left", bothWays ? `${room}px` : level.name ? "2px" : "4px");
  }

  function fit() {
    document.querySelector("main").classList.remove("wide");
    density(LEVELS[0]);
    if (!fits()) document.querySelector("main").classList.add("wide");
    const level = LEVELS.find((one) => (density(one), fits()));
    if (!level) density(LEVELS[1]);
    drawArrows();
    hint();
  }

  function hint() {
    const board = $("board");
    $("view").classList.toggle("scrolls", !fits());
    const edges = board.getBoundingClientRect();
    const start = Math.max(edges.left, document.querySelector("th.process").getBoundingClientRect().right);
    const names = moments[position].stage.columns;
    const inView = columns().filter((chunk) => {
      const { left, right } = cellOf(0, chunk).getBoundingClientRect();
      return left >= start - 2 && right <= edges.right + 1;
    });
    const [first, last] = [inView[0], inView[inView.length - 1]];
    const which = inView.length > 1 ? `Columns ${names[first]} to ${names[last]} of ${names[0]} to ${names[names.length - 1]} are` : "Not all values are";
    $("more").hidden = fits();
    $("more").textContent = `${which} in view: scroll the table sideways for the rest.`;
    $("view").classList.toggle("left", !fits() && board.scrollLeft > 1);
    $("view").classList.toggle("right", !fits() && board.scrollLeft < board.scrollWidth - board.clientWidth - 1);
  }

  function makeCell(rank, chunk) {
    const pips = element("span", { class: "pips" }, ...ranks.map(() => element("i")));
    const now = element("span", { class: "now" });
    now.style.width = `${columnWidth(chunk)}ch`;
    return element("td", {}, element("div", { class: "cell", "data-rank": rank, "data-chunk": chunk },
      element("span", { class: "old" }), now, pips));
  }

  const cellOf = (rank, chunk) => $("table").querySelector(`[data-rank="${rank}"][data-chunk="${chunk}"]`);

  function fill(rank, chunk) {
    const cell = cellOf(rank, chunk);
    const moment = moments[position];
    const parts = moment.parts[rank][chunk];
    const local = moment.messages.length === 0 && moment.was[rank][chunk] !== moment.shown[rank][chunk];
    const encoded = Boolean(moment.encoded[rank]?.includes(chunk));
    const sent = encoded || moment.messages.some((message) => message.source === rank && covers(message, chunk));
    const changed = local || moment.messages.some((message) => message.target === rank && covers(message, chunk));
    const done = parts.length === story.workers;
    cell.classList.toggle("sent", sent);
    cell.classList.toggle("changed", changed);
    cell.classList.toggle("done", done);
    const [old, now, pips] = cell.children;
    old.textContent = moment.was[rank][chunk];
    now.textContent = moment.shown[rank][chunk];
    [...pips.children].forEach((pip, index) => pip.classList.toggle("in", parts.includes(index)));
    pips.title = `values of ${parts.map((part) => `p${part}`).join(", ")}`;
  }

  // Where several arrows touch a cell on one side they are spread over its height, in an order in which none cross.
  function spread(messages) {
    const touching = new Map();
    for (const message of messages) {
      for (const [rank, other] of [[message.source, message.target], [message.target, message.source]]) {
        const key = `${rank} ${onRight(message)} ${onRight(message) ? message.stop : message.start}`;
        if (!touching.has(key)) touching.set(key, []);
        touching.get(key).push({ message, rank, rise: other - rank });
      }
    }
    const shares = new Map();
    for (const ends of touching.values()) {
      const order = (end) => end.rise < 0 ? [0, -end.rise] : [1, -end.rise];
      ends.sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
      ends.forEach((end, index) => {
        if (!shares.has(end.message)) shares.set(end.message, {});
        shares.get(end.message)[end.rank] = (index + 1) / (ends.length + 1);
      });
    }
    return shares;
  }

  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  function drawArrows() {
    const origin = $("sheet").getBoundingClientRect();
    const box = (rank, chunk) => {
      const { left, right, top, height } = cellOf(rank, chunk).getBoundingClientRect();
      return { left: left - origin.left, right: right - origin.left, top: top - origin.top, height };
    };
    const messages = moments[position].messages;
    const shares = spread(messages);
    const shapes = [];
    for (const message of messages) {
      const right = onRight(message);
      const chunk = right ? message.stop - 1 : message.start;
      const [from, to] = [box(message.source, chunk), box(message.target, chunk)];
      const share = shares.get(message);
      const [x, sign] = right ? [from.right + 3, 1] : [from.left - 3, -1];
      const [y1, y2] = [from.top + from.height * share[message.source], to.top + to.height * share[message.target]];
      const far = Math.abs(message.target - message.source) / reach;
      const bend = x + sign * (room - 6) * (0.45 + 0.8 * far);
      const [leave, arrive] = [x + 4 * sign, x + Math.min(11, room / 3.5) * sign];
      shapes.push(svg("path", { d: `M${x} ${y1}H${leave}C${bend} ${y1} ${bend} ${y2} ${arrive} ${y2}H${x}`, "marker-end": "url(#head)", pathLength: 1 }));
      if (message.stop - message.start > 1) shapes.push(frame(box(message.source, message.start), box(message.source, message.stop - 1)));
    }
    $("drawn").replaceChildren(...shapes);
  }

  const frame = (first, last) => svg("rect", {
    x: first.left - 5, y: first.top - 5, width: last.right - first.left + 10, height: first.height + 10, rx: 13 });

  function tell() {
    const moment = moments[position];
    const rounds = story.totals.rounds;
    $("title").textContent = position === 0 ? "At the start" : moment.stage.title ? `${moment.stage.title}: ${moment.title}` : moment.title;
    $("sentence").textContent = position === 0
      ? (steps.length ? "Every process holds values of its own; step forward to see them travel." : "There is nothing to send.")
      : moment.sentence;
    $("progress").textContent = moment.progress ? `${moment.progress[0].toUpperCase()}${moment.progress.slice(1)}.` : "";
    const done = moments.slice(0, position + 1).filter((one) => one.round).length;
    $("counter").textContent = moment.round ? `round ${moment.round} of ${rounds}` : done ? `after round ${done}` : position ? "before round 1" : `start, ${rounds} round${rounds === 1 ? "" : "s"}`;
    $("details").textContent = moment.round ? "Received in this round" : "What each process does";
    $("received").replaceChildren(...moment.received.map((receipt) => element("li", {}, receipt.text)));
    document.querySelector(".details").hidden = moment.received.length === 0;
  }

  // Not "disabled": a button that loses its focus on the last round would take the keys with it.
  const dim = (ids, dimmed) => ids.forEach((id) => $(id).setAttribute("aria-disabled", dimmed));

  function go(to) {
    const before = moments[position].stage;
    position = Math.max(0, Math.min(moments.length - 1, to));
    const another = moments[position].stage !== before || !$("table").rows.length;
    if (another) makeTable();
    for (const rank of ranks) for (const column of columns()) fill(rank, column);
    tell();
    if (another) fit();
    else drawArrows();
    $("slider").value = position;
    $("slider").setAttribute("aria-valuetext", $("counter").textContent);
    dim(["first", "back"], position === 0);
    dim(["forward", "last"], position === moments.length - 1);
    document.body.dataset.position = position;
    if (position === moments.length - 1) pause();
  }

  function pause() {
    clearInterval(playing);
    playing = 0;
    $("play").setAttribute("aria-pressed", "false");
  }

  function play() {
    if (playing) return pause();
    go(position === moments.length - 1 ? 0 : position + 1);
    if (position === moments.length - 1) return undefined;
    playing = setInterval(() => go(position + 1), PAUSE);
    $("play").setAttribute("aria-pressed", "true");
    return undefined;
  }

  const step = (to) => { pause(); go(to); };
  const last = moments.length - 1;
  const keys = {
    ArrowRight: () => step(position + 1), ArrowLeft: () => step(position - 1),
    Home: () => step(0), End: () => step(last), " ": play,
  };

  function pressed(event) {
    if (!(event.key in keys) || event.ctrlKey || event.altKey || event.metaKey) return;
    // What has the focus may need the key itself: the slider to move, a button to be pressed, a wide board to scroll.
    const { id, tagName, scrollWidth, clientWidth } = event.target;
    if (id === "slider" && event.key !== " ") return;
    if (tagName === "BUTTON" && event.key === " ") return;
    if (id === "board" && event.key.startsWith("Arrow") && scrollWidth > clientWidth) return;
    event.preventDefault();
    keys[event.key]();
  }

  $("name").textContent = `${story.schedule} all-reduce, ${story.op}${story.codec === "identity" ? "" : `, ${story.codec}`}`;
  $("about").textContent = `${story.opening} ${story.about}`;
  $("how").textContent = story.how;
  $("summary").append(...story.summary.map((line) => element("li", {}, line)));
  $("slider").max = last;
  dim(["play", "slider"], last === 0);
  $("first").addEventListener("click", () => step(0));
  $("back").addEventListener("click", () => step(position - 1));
  $("play").addEventListener("click", play);
  $("forward").addEventListener("click", () => step(position + 1));
  $("last").addEventListener("click", () => step(last));
  $("slider").addEventListener("input", (event) => step(Number(event.target.value)));
  document.addEventListener("keydown", pressed);
  go(0);
  $("board").addEventListener("scroll", hint, { passive: true });
  window.addEventListener("resize", fit);
  new ResizeObserver(drawArrows).observe($("sheet"));
})();
