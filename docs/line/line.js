// The page of the line. Python decides everything; this script sends commands and draws what Python shows.
(() => {
  const root = document.getElementById("line");
  const PLAYS = {
    "three calls": ["send A", "send A", "send A", "send B", 24],
    "a worker is killed": ["send A", "send A", 3, "kill 1", 23],
    "a worker is paused": ["send A", "send A", 3, "pause 1", 12, "resume 1", 5],
    "a tenant floods the line": ["send acme", "send acme", "send acme", "send acme", 2, "send zeta", "send zeta", 46],
    "the store loses its data": ["send A", "send A", "send B", 3, "lose", "send B", 17],
  };
  let model, world, timer, play = [];
  const drawn = {};

  async function bytes(name) {
    return Uint8Array.from(atob(PYTHON.files[name]), (letter) => letter.charCodeAt(0));
  }

  // Pyodide asks for two files. They are in memory, since a page that was opened as a file can fetch none.
  async function answer(url) {
    const name = String(url).split("/").pop();
    const isPacked = name.endsWith(".wasm");
    const body = new Blob([await bytes(name)]).stream();
    const type = isPacked ? "application/wasm" : "application/zip";
    const stream = isPacked ? body.pipeThrough(new DecompressionStream("gzip")) : body;
    return new Response(stream, { headers: { "Content-Type": type } });
  }

  async function start() {
    const fetch = window.fetch;
    window.fetch = answer;
    try {
      const python = await loadPyodide({ indexURL: document.baseURI, lockFileContents: PYTHON.lock });
      python.unpackArchive(await bytes("modules.zip"), "zip");
      model = python.pyimport("model");
    } finally {
      window.fetch = fetch;
    }
    frame();
    reset();
  }

  function frame() {
    const plays = Object.keys(PLAYS).map((name) => `<button data-play="${name}">${name}</button>`).join("");
    root.innerHTML = `
      <div class="bar"><b>Watch</b>${plays}</div>
      <div class="bar"><b>Do</b>
        <button data-do="send A">Call A</button><button data-do="send B">Call B</button>
        <button data-do="send acme">Call acme</button><button data-do="send zeta">Call zeta</button>
        <button data-do="lose">Lose the store's data</button><button data-reset>Start over</button></div>
      <div class="bar"><b>Time</b>
        <button data-do="tick">One second</button><button data-run></button>
        <label>slow <input type="range" min="0" max="4" step="0.5" value="1"> fast</label>
        <span class="clock"></span></div>
      <div class="world">
        <section><h4>Broker</h4><div class="queue"></div></section>
        <section><h4>Workers, one slot each</h4>${[1, 2, 3].map((number) => `
          <div class="worker w${number}"><div class="row head"></div><div class="row slot"></div></div>`).join("")}</section>
        <section><h4>Store</h4><div class="store"></div></section>
      </div>
      <ol aria-label="Events, the newest first"></ol>`;
    root.addEventListener("click", (event) => {
      const data = event.target.closest("button")?.dataset ?? {};
      if (data.do) act(data.do);
      if ("run" in data) timer ? stop() : run();
      if ("reset" in data) reset();
      if (data.play) {
        reset();
        play = [...PLAYS[data.play]];
        run();
      }
    });
  }

  function act(command) {
    world.do(command);
    draw();
  }

  function reset() {
    play = [];
    stop();
    world = model.World();
    draw();
  }

  function run() {
    const rate = 2 ** root.querySelector("input").value;
    timer = setTimeout(() => {
      next();
      if (timer) run();
    }, 1000 / rate);
    draw();
  }

  function stop() {
    clearTimeout(timer);
    timer = undefined;
    draw();
  }

  // Do the next command of a play, or let a second pass. A number is a count of seconds.
  function next() {
    const command = play.shift();
    if (command > 1) play.unshift(command - 1);
    world.do(typeof command === "string" ? command : "tick");
    if (command !== undefined && !play.length) stop();
    draw();
  }

  const call = (name) => `<span class="call ${name[0]}">${name}</span>`;
  const row = (...parts) => `<div class="row">${parts.join(" ")}</div>`;
  const quiet = (text) => `<span class="quiet">${text}</span>`;
  const meter = (value, max) => `<meter value="${value}" max="${max}"></meter>`;
  const fenced = (fence) => quiet(`fence ${fence.toLocaleString("en")}`);

  function draw() {
    if (!world) return;
    const [second, queue, workers, keys, log] = JSON.parse(world.view());
    put(".clock", `${second} s`);
    put("[data-run]", timer ? "Stop" : "Run");
    put(".queue", queue.map(message).join("") || quiet("no message"));
    workers.forEach(worker);
    put(".store", Object.entries(keys).map(key).join(""));
    put("ol", log.map(([at, text]) => `<li><span>${at} s</span>${text}</li>`).reverse().join(""));
  }

  // An element that has not changed stays: a click on its buttons must not get lost.
  function put(place, html) {
    if (drawn[place] !== html) root.querySelector(place).innerHTML = drawn[place] = html;
  }

  function message([name, isOffered, isAgain]) {
    return row(call(name), quiet([isOffered && "offered", isAgain && "delivered again"].filter(Boolean).join(", ")));
  }

  function worker([name, state, run]) {
    const number = name.slice(1);
    const button = (verb) => `<button data-do="${verb} ${number}">${verb[0].toUpperCase()}${verb.slice(1)}</button>`;
    const buttons = { up: ["kill", "pause"], paused: ["kill", "resume"], dead: ["start"] }[state].map(button);
    const slot = run ? [call(run[0]), meter(run[1], model.BODY), fenced(run[2])] : [quiet(state === "dead" ? "" : "slot free")];
    const shown = state === "up" ? "" : quiet(state);
    put(`.${name} .head`, [`<b>${name}</b>`, shown, ...buttons].join(" "));
    put(`.${name} .slot`, slot.join(" "));
    root.querySelector(`.${name}`).className = `worker ${name} ${state}`;
  }

  function key([name, [holders, line]]) {
    const held = holders.map(([id, by, fence, left]) => row(call(id), `on ${by}`, fenced(fence)) + row(
      "lease", meter(Math.max(left, 0), model.TTL), quiet(left > 0 ? `${left} s left` : "expired")));
    const places = line.map(([id, state, left]) => {
      const offer = left ? `offered, ${left} s left` : "";
      return row(call(id), quiet({ waiting: offer, behind: "behind its run", aside: "aside" }[state]));
    });
    return `<h5>Key ${name}${name === "S" ? ", shared by tenants" : ""}</h5>${held.join("") || row(quiet("no holder"))}${row("line", line.length ? "" : quiet("empty"))}${places.join("")}`;
  }

  if (typeof PYTHON === "undefined" || !PYTHON) root.textContent = "This site was built without Pyodide.";
  else {
    root.textContent = "Python starts. This takes a few seconds.";
    start().catch((error) => (root.textContent = `Python does not start in this browser: ${error}`));
  }
})();
