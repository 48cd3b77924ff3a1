// Draws every element of class flexor-animation from the JSON inside it, on a 2-D canvas: convex shapes as shaded faces,
// sorted from far to near, over a grid and their shadows. World axes x forward, y left, z up; quaternions w x y z.
"use strict";
(() => {
  const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
  const sub = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
  const scale = (a, s) => [a[0] * s, a[1] * s, a[2] * s];
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
  const unit = (a) => scale(a, 1 / (Math.hypot(...a) || 1));
  const LIGHT = unit([0.35, -0.45, 1]);

  function matrix([w, x, y, z]) {
    const n = 2 / (w * w + x * x + y * y + z * z || 1);
    return [
      [1 - n * (y * y + z * z), n * (x * y - w * z), n * (x * z + w * y)],
      [n * (x * y + w * z), 1 - n * (x * x + z * z), n * (y * z - w * x)],
      [n * (x * z - w * y), n * (y * z + w * x), 1 - n * (x * x + y * y)],
    ];
  }
  const turn = (R, v) => [dot(R[0], v), dot(R[1], v), dot(R[2], v)];

  // ---- shapes: vertices and faces, counter-clockwise from outside, in the frame of the shape ----

  function revolve(profile, around) {
    // a closed surface around z from points (radius, z), lowest first; the first and last radius may be zero
    const vertices = [], faces = [], rings = [];
    for (const [r, z] of profile) {
      const ring = [];
      for (let i = 0; i < (r > 0 ? around : 1); i++) {
        const a = (2 * Math.PI * i) / around;
        ring.push(vertices.push([r * Math.cos(a), r * Math.sin(a), z]) - 1);
      }
      rings.push(ring);
    }
    for (let k = 0; k + 1 < rings.length; k++) {
      const low = rings[k], high = rings[k + 1];
      for (let i = 0; i < around; i++) {
        const j = (i + 1) % around, l = low.length, h = high.length;
        const face = [low[i % l], low[j % l], high[j % h], high[i % h]];
        faces.push(face.filter((v, n) => face.indexOf(v) === n));
      }
    }
    if (rings[0].length > 1) faces.push([...rings[0]].reverse());
    if (rings.at(-1).length > 1) faces.push(rings.at(-1));
    return { vertices, faces };
  }

  function capsule(radius, half) {
    const profile = [], steps = 4;
    for (let i = 0; i <= steps; i++) profile.push(ball(radius, -half, -Math.PI / 2 + (i * Math.PI) / 2 / steps));
    for (let i = half > 0 ? 0 : 1; i <= steps; i++) profile.push(ball(radius, half, (i * Math.PI) / 2 / steps));
    return revolve(profile, 14);
  }
  const ball = (r, z, a) => [Math.abs(Math.cos(a)) < 1e-9 ? 0 : r * Math.cos(a), z + r * Math.sin(a)];

  function box([x, y, z]) {
    const vertices = [];
    for (const c of [-z, z]) for (const b of [-y, y]) for (const a of [-x, x]) vertices.push([a, b, c]);
    const faces = [[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]];
    return { vertices, faces };
  }

  function solid(s) {
    const [a, b] = s.size;
    if (s.shape === "sphere") return capsule(a, 0);
    if (s.shape === "capsule") return capsule(a, b);
    if (s.shape === "cylinder") return revolve([[a, -b], [a, b]], 18);
    if (s.shape === "box") return box(s.size);
    if (s.shape === "ellipsoid") {
      const { vertices, faces } = capsule(1, 0);
      return { vertices: vertices.map((v) => v.map((x, i) => x * s.size[i])), faces };
    }
    if (s.shape === "mesh") return { vertices: s.vertices, faces: s.faces };
    return null;
  }

  function prepare(actor) {
    actor.planes = [];
    actor.solids = [];
    for (const s of actor.shapes) {
      const R = matrix(s.quat);
      if (s.shape === "plane") {
        actor.planes.push({ body: s.body, pos: s.pos, R });
        continue;
      }
      const { vertices, faces } = solid(s);
      const placed = vertices.map((v) => add(s.pos, turn(R, v)));
      const normals = faces.map((f) => {
        const [a, b, c] = f.map((i) => placed[i]);
        return unit(cross(sub(b, a), sub(c, a)));
      });
      actor.solids.push({ body: s.body, vertices: placed, faces, normals });
    }
    const [r, g, b] = rgb(actor.colour);
    actor.shade = Array.from({ length: 32 }, (_, i) => {
      const k = 0.42 + (0.75 * i) / 31;
      const tone = (c) => Math.round(Math.min(255, c * k + Math.max(0, k - 1) * 160));
      return `rgb(${tone(r)},${tone(g)},${tone(b)})`;
    });
  }

  function rgb(colour) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return pen.getImageData(0, 0, 1, 1).data;
  }

  // ---- the camera ----

  // The camera looks at data.centre, which has one row or one for each frame, moved by the mouse's `pan`.
  function camera(data) {
    const { azimuth, elevation } = data.camera;
    return { azimuth, elevation, distance: 1, zoom: 1, pan: [0, 0, 0], target: data.centre[0], radius: Math.hypot(...data.half) };
  }

  const focalLength = (width, height) => 1.7 * Math.min(height, width * 0.75);

  // Distance at which all corners of the box are in the picture, seen from where the camera starts.
  function fit(data, width, height) {
    const { back, right, up } = axes(data.camera), focal = focalLength(width, height);
    let far = 0;
    for (const x of [-1, 1]) for (const y of [-1, 1]) for (const z of [-1, 1]) {
      const corner = [x * data.half[0], y * data.half[1], z * data.half[2]];
      const wide = Math.max(Math.abs(dot(corner, right)) / (width / 2), Math.abs(dot(corner, up)) / (height / 2));
      far = Math.max(far, dot(corner, back) + (focal * wide) / data.camera.margin);
    }
    return far;
  }

  function axes(cam) {
    const ce = Math.cos(cam.elevation), se = Math.sin(cam.elevation);
    const back = [ce * Math.cos(cam.azimuth), ce * Math.sin(cam.azimuth), se];
    const right = [-Math.sin(cam.azimuth), Math.cos(cam.azimuth), 0];
    return { back, right, up: cross(back, right) };
  }

  function view(cam, width, height) {
    const { back, right, up } = axes(cam);
    const eye = add(cam.target, scale(back, cam.distance));
    const focal = focalLength(width, height);
    const near = cam.distance * 0.02;
    const project = (p) => {
      const d = sub(p, eye), depth = -dot(d, back);
      if (depth < near) return null;
      return [width / 2 + (focal * dot(d, right)) / depth, height / 2 - (focal * dot(d, up)) / depth, depth];
    };
    return { project, eye, right, up, focal };
  }

  // ---- drawing ----

  function polygon(pen, points) {
    pen.moveTo(points[0][0], points[0][1]);
    for (let i = 1; i < points.length; i++) pen.lineTo(points[i][0], points[i][1]);
    pen.closePath();
  }

  function drawGrid(pen, look, plane, cam, step, colour) {
    const local = turn(transpose(plane.R), sub(cam.target, plane.pos));
    const middle = [Math.round(local[0] / step), Math.round(local[1] / step)];
    const count = Math.max(6, Math.ceil((3 * cam.radius) / step));
    const at = (i, j) => look.project(add(plane.pos, turn(plane.R, [(middle[0] + i) * step, (middle[1] + j) * step, 0])));
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    for (let i = -count; i <= count; i++) {
      for (let j = -count; j < count; j++) {
        const fade = 1 - Math.hypot(i, j + 0.5) / count;
        if (fade <= 0) continue;
        pen.globalAlpha = (plane.light ? 0.5 : 0.9) * Math.min(1, 1.6 * fade);
        for (const [a, b] of [[at(i, j), at(i, j + 1)], [at(j, i), at(j + 1, i)]]) {
          if (!a || !b) continue;
          pen.beginPath();
          pen.moveTo(a[0], a[1]);
          pen.lineTo(b[0], b[1]);
          pen.stroke();
        }
      }
    }
    pen.globalAlpha = 1;
  }
  const transpose = (R) => [0, 1, 2].map((i) => [R[0][i], R[1][i], R[2][i]]);

  function bodyFrames(actor, frame) {
    const numbers = actor.poses[frame], frames = [];
    for (let i = 0; i < numbers.length; i += 7) {
      frames.push({ pos: add(numbers.slice(i, i + 3), actor.offset), R: matrix(numbers.slice(i + 3, i + 7)) });
    }
    return frames;
  }

  function drawShadow(pen, look, faces, plane) {
    const n = turn(plane.R, [0, 0, 1]), slope = dot(n, LIGHT);
    if (slope <= 0.05) return;
    pen.beginPath();
    for (const { points, normal } of faces) {
      if (dot(normal, LIGHT) <= 0) continue;
      const fallen = points.map((p) => look.project(sub(p, scale(LIGHT, dot(sub(p, plane.pos), n) / slope))));
      if (fallen.every(Boolean) && points.every((p) => dot(sub(p, plane.pos), n) > -1e-2)) polygon(pen, fallen);
    }
    pen.fillStyle = "rgba(0,0,0,0.16)";
    pen.fill("nonzero");
  }

  function facesOf(actor, frames) {
    const faces = [];
    for (const solid of actor.solids) {
      const { pos, R } = frames[solid.body];
      const placed = solid.vertices.map((v) => add(pos, turn(R, v)));
      solid.faces.forEach((f, i) => {
        const points = f.map((v) => placed[v]);
        faces.push({ points, normal: turn(R, solid.normals[i]), actor });
      });
    }
    return faces;
  }

  function drawFaces(pen, look, faces) {
    const seen = [];
    for (const face of faces) {
      if (dot(face.normal, sub(look.eye, face.points[0])) <= 0) continue;
      const screen = face.points.map(look.project);
      if (screen.some((p) => !p)) continue;
      const depth = screen.reduce((sum, p) => sum + p[2], 0) / screen.length;
      seen.push({ screen, depth, face });
    }
    seen.sort((a, b) => b.depth - a.depth);
    pen.lineWidth = 0.8;
    pen.lineJoin = "round";
    for (const { screen, face } of seen) {
      const light = 0.5 + 0.5 * dot(face.normal, LIGHT);
      pen.fillStyle = pen.strokeStyle = face.actor.shade[Math.round(31 * light)];
      pen.beginPath();
      polygon(pen, screen);
      pen.fill();
      pen.stroke();
    }
  }

  function drawForces(pen, look, actor, frame, cam, colour) {
    if (!actor.forces) return;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 2;
    for (const f of actor.forces[frame]) {
      const at = add(f.slice(0, 3), actor.offset);
      const long = scale(f.slice(3), (0.5 * cam.radius) / (actor.weight || 1));
      const cut = Math.min(1, (0.9 * cam.radius) / (Math.hypot(...long) || 1));
      const from = look.project(at), to = look.project(add(at, scale(long, cut)));
      if (!from || !to) continue;
      const [dx, dy] = [to[0] - from[0], to[1] - from[1]], length = Math.hypot(dx, dy);
      if (length < 3) continue;
      const [ux, uy] = [dx / length, dy / length], head = Math.min(8, length);
      pen.beginPath();
      pen.moveTo(from[0], from[1]);
      pen.lineTo(to[0] - ux * head, to[1] - uy * head);
      pen.stroke();
      pen.beginPath();
      polygon(pen, [to, [to[0] - ux * head - uy * 4, to[1] - uy * head + ux * 4], [to[0] - ux * head + uy * 4, to[1] - uy * head - ux * 4]]);
      pen.fill();
    }
  }

  function draw(canvas, data, cam, frame) {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    cam.distance = cam.zoom * fit(data, width, height);
    cam.target = add(data.centre[Math.min(frame, data.centre.length - 1)], cam.pan);
    const look = view(cam, width, height);
    const frames = data.actors.map((actor) => bodyFrames(actor, frame));
    const faces = data.actors.flatMap((actor, i) => facesOf(actor, frames[i]));
    const planes = data.actors.flatMap((actor, i) => actor.planes.map((p) => placePlane(p, frames[i][p.body], actor)));
    const floor = planes[0] || { pos: [0, 0, data.floor], R: matrix([1, 0, 0, 0]), light: true };
    drawGrid(pen, look, floor, cam, data.square, style.getPropertyValue("--grid"));
    drawShadow(pen, look, faces, floor);
    drawFaces(pen, look, faces);
    data.actors.forEach((actor) => drawForces(pen, look, actor, frame, cam, style.getPropertyValue("--force")));
  }

  function placePlane(plane, frame, actor) {
    const R = transpose(transpose(plane.R).map((column) => turn(frame.R, column)));
    return { pos: sub(add(frame.pos, turn(frame.R, plane.pos)), actor.offset), R };
  }

  // ---- the element: canvas, button, slider, mouse ----

  function make(tag, name, parent, attributes = {}) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  }

  function controls(root, data) {
    const canvas = make("canvas", "", root, { tabindex: 0, "aria-label": "drag to turn, wheel to zoom" });
    const legend = make("div", "legend", root);
    for (const actor of data.actors) {
      if (!actor.label) continue;
      const item = make("span", "", legend);
      make("i", "", item).style.background = actor.colour;
      item.append(actor.label);
    }
    const bar = make("div", "bar", root);
    const button = make("button", "", bar, { type: "button" });
    const slider = make("input", "", bar, { type: "range", min: 0, max: data.time.length - 1, value: 0, "aria-label": "time" });
    const speed = make("select", "", bar, { "aria-label": "speed" });
    for (const s of [0.1, 0.25, 0.5, 1, 2]) {
      make("option", "", speed, { value: s }).textContent = `${s}×`;
    }
    speed.value = "1";
    const clock = make("output", "", bar);
    return { canvas, button, slider, speed, clock };
  }

  function steer(canvas, cam, redraw) {
    const start = { ...cam };
    const held = new Map();
    canvas.addEventListener("pointerdown", (e) => {
      held.set(e.pointerId, [e.clientX, e.clientY]);
      canvas.setPointerCapture(e.pointerId);
    });
    const release = (e) => held.delete(e.pointerId);
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointermove", (e) => {
      const last = held.get(e.pointerId);
      if (!last) return;
      const [dx, dy] = [e.clientX - last[0], e.clientY - last[1]];
      held.set(e.pointerId, [e.clientX, e.clientY]);
      if (e.shiftKey || e.buttons === 2 || held.size > 1) {
        const look = view(cam, canvas.clientWidth, canvas.clientHeight), k = cam.distance / look.focal;
        cam.pan = add(cam.pan, add(scale(look.right, -dx * k), scale(look.up, dy * k)));
      } else {
        cam.azimuth -= dx * 0.008;
        cam.elevation = Math.min(1.55, Math.max(-0.2, cam.elevation + dy * 0.008));
      }
      redraw();
    });
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      cam.zoom = Math.min(15, Math.max(0.1, cam.zoom * Math.exp(e.deltaY * 0.001)));
      redraw();
    }, { passive: false });
    canvas.addEventListener("contextmenu", (e) => e.preventDefault());
    canvas.addEventListener("dblclick", () => { Object.assign(cam, start); redraw(); });
  }

  function start(root) {
    const data = JSON.parse(root.querySelector("script").textContent);
    data.actors.forEach(prepare);
    const { canvas, button, slider, speed, clock } = controls(root, data);
    const cam = camera(data), end = data.time.at(-1);
    let now = 0, playing = false, visible = false, last = null, asked = false;

    const frameAt = (t) => {
      let low = 0, high = data.time.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (data.time[middle] <= t + 1e-6) low = middle; else high = middle - 1;
      }
      return low;
    };
    const redraw = () => {
      const frame = frameAt(now);
      draw(canvas, data, cam, frame);
      slider.value = frame;
      clock.textContent = `${data.time[frame].toFixed(2)} / ${end.toFixed(2)} s`;
    };
    const ask = () => {
      if (!asked) requestAnimationFrame(tick);
      asked = true;
    };
    const tick = (stamp) => {
      asked = false;
      if (!playing || !visible) { last = null; return; }
      if (last !== null) now += ((stamp - last) / 1000) * Number(speed.value);
      last = stamp;
      if (now > end + 0.6) now = 0;
      redraw();
      ask();
    };
    const play = (on) => {
      playing = on;
      button.textContent = on ? "❚❚" : "▶";
      button.setAttribute("aria-label", on ? "pause" : "play");
      if (on) { if (now >= end) now = 0; last = null; ask(); }
    };
    button.addEventListener("click", () => play(!playing));
    canvas.addEventListener("keydown", (e) => { if (e.key === " ") { e.preventDefault(); play(!playing); } });
    slider.addEventListener("input", () => { play(false); now = data.time[Number(slider.value)]; redraw(); });
    steer(canvas, cam, redraw);
    new ResizeObserver(redraw).observe(canvas);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new IntersectionObserver(([entry]) => {
      visible = entry.isIntersecting;
      if (visible && playing) ask();
    }).observe(canvas);
    play(!window.matchMedia("(prefers-reduced-motion: reduce)").matches);
    redraw();
  }

  document.querySelectorAll(".flexor-animation").forEach(start);
})();
