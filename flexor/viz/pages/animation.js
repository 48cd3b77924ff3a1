// Draws every element of class flexor-animation from the JSON inside it, with three.js (three.min.js). World axes x forward,
// y left, z up; quaternions w x y z. One WebGL context draws for all elements of a page, each copies its picture to a canvas.
"use strict";
(() => {
  const T = flexorThree;
  const LIGHT = new T.Vector3(0.35, -0.45, 1).normalize();
  const CREASE = 0.6; // rad between faces: a sharper edge is drawn as one
  const MISSING = "This browser cannot draw in 3-D: WebGL is missing or switched off. The rest of the page is complete.";

  // ---- the renderer that all elements share ----

  let renderer; // undefined before the first use, null where there is no WebGL

  function shared() {
    if (renderer !== undefined) return renderer;
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("webgl2", { alpha: true, antialias: true });
    renderer = context ? new T.WebGLRenderer({ canvas, context, alpha: true }) : null;
    if (renderer) {
      renderer.setClearColor(0x000000, 0);
      renderer.shadowMap.enabled = true;
    }
    return renderer;
  }

  function paint(canvas, scene, camera) {
    const { width, height } = canvas, from = renderer.domElement;
    if (from.width < width || from.height < height) {
      renderer.setSize(Math.max(from.width, width), Math.max(from.height, height), false);
    }
    renderer.setViewport(0, 0, width, height);
    renderer.setScissor(0, 0, width, height);
    renderer.setScissorTest(true);
    renderer.render(scene, camera);
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, width, height);
    pen.drawImage(from, 0, from.height - height, width, height, 0, 0, width, height);
  }

  // ---- data ----

  function bytes(text) {
    const raw = atob(text), made = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
    return made.buffer;
  }

  function meshGeometry(mesh) {
    const steps = new Uint16Array(bytes(mesh.vertices)), points = new Float32Array(steps.length);
    for (let i = 0; i < steps.length; i++) points[i] = mesh.low[i % 3] + mesh.step[i % 3] * steps[i];
    const geometry = new T.BufferGeometry();
    geometry.setAttribute("position", new T.BufferAttribute(points, 3));
    const faces = bytes(mesh.faces);
    geometry.setIndex(new T.BufferAttribute(mesh.wide ? new Uint32Array(faces) : new Uint16Array(faces), 1));
    if (mesh.colours) geometry.setAttribute("color", linear(new Uint8Array(bytes(mesh.colours))));
    return T.toCreasedNormals(geometry, CREASE);
  }

  function linear(bytes) {
    const made = new Float32Array(bytes.length), colour = new T.Color();
    for (let i = 0; i < bytes.length; i += 3) {
      colour.setRGB(bytes[i] / 255, bytes[i + 1] / 255, bytes[i + 2] / 255, "srgb").toArray(made, i);
    }
    return new T.BufferAttribute(made, 3);
  }

  function geometryOf(shape, meshes) {
    const [a, b, c] = shape.size;
    if (shape.shape === "sphere") return new T.SphereGeometry(a, 32, 20);
    if (shape.shape === "capsule") return new T.CapsuleGeometry(a, 2 * b, 10, 28).rotateX(Math.PI / 2);
    if (shape.shape === "cylinder") return new T.CylinderGeometry(a, a, 2 * b, 36).rotateX(Math.PI / 2);
    if (shape.shape === "box") return new T.BoxGeometry(2 * a, 2 * b, 2 * c);
    if (shape.shape === "ellipsoid") return new T.SphereGeometry(1, 32, 20).scale(a, b, c);
    return meshes[shape.mesh]; // shared by the shapes that have it
  }

  const place = (object, pos, [w, x, y, z]) => {
    object.position.fromArray(pos);
    object.quaternion.set(x, y, z, w);
    return object;
  };

  // ---- what stands in the scene ----

  function addActor(scene, actor, meshes) {
    const bodies = Array.from({ length: actor.bodies }, () => new T.Group()), floors = [];
    for (const body of bodies) scene.add(body);
    for (const shape of actor.shapes) {
      if (shape.shape === "plane") {
        const floor = place(new T.Group(), shape.pos, shape.quat);
        bodies[shape.body].add(floor);
        floors.push(floor);
        continue;
      }
      const opacity = shape.opacity ?? 1, geometry = geometryOf(shape, meshes);
      const vertexColors = actor.painted && Boolean(geometry.getAttribute("color"));
      const material = new T.MeshStandardMaterial({
        color: vertexColors ? "#ffffff" : shape.colour ?? actor.colour, vertexColors, roughness: 0.6, metalness: 0.05,
        transparent: opacity < 1, opacity, side: shape.shape === "mesh" ? T.DoubleSide : 0,
      });
      const solid = place(new T.Mesh(geometry, material), shape.pos, shape.quat);
      solid.castShadow = solid.receiveShadow = true;
      bodies[shape.body].add(solid);
    }
    const { forces, weight, offset } = actor;
    return { bodies, floors, poses: new Float32Array(bytes(actor.poses)), arrows: [], forces, weight, offset };
  }

  // Lines that fade away from the middle, and the ground that takes the shadows; `follow` keeps the middle below the target.
  function makeFloor(data, radius, light) {
    const step = data.square, count = Math.min(60, Math.max(6, Math.ceil((3 * radius) / step)));
    const points = [], colours = [], colour = new T.Color("#ffffff");
    const corner = (i, j) => {
      points.push(i * step, j * step, 0);
      const fade = Math.min(1, 1.6 * Math.max(0, 1 - Math.hypot(i, j) / count));
      colours.push(colour.r, colour.g, colour.b, fade * (light ? 0.5 : 0.9));
    };
    for (let i = -count; i <= count; i++) {
      for (let j = -count; j < count; j++) {
        if (Math.hypot(i, j + 0.5) >= count) continue;
        corner(i, j); corner(i, j + 1); corner(j, i); corner(j + 1, i);
      }
    }
    const geometry = new T.BufferGeometry();
    geometry.setAttribute("position", new T.Float32BufferAttribute(points, 3));
    geometry.setAttribute("color", new T.Float32BufferAttribute(colours, 4));
    const material = new T.LineBasicMaterial({ vertexColors: true, transparent: true, depthWrite: false });
    const lines = new T.LineSegments(geometry, material), floor = new T.Group();
    const ground = new T.Mesh(new T.PlaneGeometry(2 * count * step, 2 * count * step), new T.ShadowMaterial({ opacity: 0.22, depthWrite: false }));
    ground.receiveShadow = true;
    ground.renderOrder = -2;
    lines.renderOrder = -1;
    floor.add(ground, lines);
    const local = new T.Vector3();
    const follow = (target) => {
      floor.parent.updateWorldMatrix(true, false);
      floor.parent.worldToLocal(local.copy(target));
      floor.position.set(Math.round(local.x / step) * step, Math.round(local.y / step) * step, 0);
    };
    return { floor, material, follow };
  }

  function makeLight(scene, radius) {
    scene.add(new T.HemisphereLight("#ffffff", "#8d949e", 2.2));
    const sun = new T.DirectionalLight("#ffffff", 2.2), reach = 2 * radius;
    sun.castShadow = true;
    sun.shadow.mapSize.set(2048, 2048);
    Object.assign(sun.shadow.camera, { left: -reach, right: reach, top: reach, bottom: -reach, near: 0.1 * radius, far: 8 * radius });
    sun.shadow.bias = -0.0005;
    sun.shadow.normalBias = 0.004 * radius;
    sun.shadow.camera.updateProjectionMatrix();
    scene.add(sun, sun.target);
    return sun;
  }

  function makeArrow(scene, material, radius) {
    const arrow = new T.Group(), thick = 0.012 * radius;
    const shaft = new T.Mesh(new T.CylinderGeometry(thick, thick, 1, 10).translate(0, 0.5, 0), material);
    const head = new T.Mesh(new T.ConeGeometry(3 * thick, 8 * thick, 14), material);
    for (const part of [shaft, head]) part.renderOrder = 2;
    arrow.add(shaft, head);
    scene.add(arrow);
    const up = new T.Vector3(0, 1, 0), along = new T.Vector3();
    const show = (pos, force) => {
      along.fromArray(force);
      const length = along.length();
      arrow.visible = length > 0.01 * radius;
      if (!arrow.visible) return;
      arrow.position.fromArray(pos);
      arrow.quaternion.setFromUnitVectors(up, along.normalize());
      const tip = Math.min(8 * thick, length);
      shaft.scale.set(1, Math.max(length - tip, 1e-6), 1);
      head.position.y = length - tip / 2;
      head.scale.setScalar(tip / (8 * thick));
    };
    return { show, hide: () => { arrow.visible = false; } };
  }

  function showForces(stage, actor, frame) {
    if (!actor.forces) return;
    const forces = actor.forces[frame], { radius } = stage;
    while (actor.arrows.length < forces.length) actor.arrows.push(makeArrow(stage.scene, stage.force, radius));
    actor.arrows.forEach((arrow, i) => {
      if (i >= forces.length) { arrow.hide(); return; }
      const f = forces[i].slice(3), size = Math.hypot(...f) || 1, k = (0.5 * radius) / (actor.weight || 1);
      const scale = Math.min(k, (0.9 * radius) / size);
      arrow.show(forces[i].slice(0, 3).map((x, n) => x + actor.offset[n]), f.map((x) => x * scale));
    });
  }

  function build(data) {
    const scene = new T.Scene(), radius = Math.hypot(...data.half), meshes = data.meshes.map(meshGeometry);
    const actors = data.actors.map((actor) => addActor(scene, actor, meshes));
    let grounds = (actors.find((a) => a.floors.length) || { floors: [] }).floors;
    const drawn = !grounds.length;
    if (drawn) {
      grounds = [new T.Group()];
      grounds[0].position.z = data.floor;
      scene.add(grounds[0]);
    }
    const floors = grounds.map((ground) => {
      const made = makeFloor(data, radius, drawn);
      ground.add(made.floor);
      return made;
    });
    const force = new T.MeshBasicMaterial({ depthTest: false, transparent: true });
    return { scene, radius, actors, floors, force, sun: makeLight(scene, radius) };
  }

  function pose(stage, frame) {
    for (const actor of stage.actors) {
      const { bodies, poses, offset } = actor, row = 7 * bodies.length * frame;
      bodies.forEach((body, i) => {
        const [x, y, z, qw, qx, qy, qz] = poses.subarray(row + 7 * i, row + 7 * i + 7);
        body.position.set(x + offset[0], y + offset[1], z + offset[2]);
        body.quaternion.set(qx, qy, qz, qw);
      });
      showForces(stage, actor, frame);
    }
  }

  // ---- the camera ----

  const focalLength = (width, height) => 1.7 * Math.min(height, width * 0.75); // pixels

  function axes({ azimuth, elevation }) {
    const ce = Math.cos(elevation), se = Math.sin(elevation);
    const back = new T.Vector3(ce * Math.cos(azimuth), ce * Math.sin(azimuth), se);
    const right = new T.Vector3(-Math.sin(azimuth), Math.cos(azimuth), 0);
    return { back, right, up: back.clone().cross(right) };
  }

  // Distance at which all corners of the box are in the picture, seen from where the camera starts.
  function fit(data, width, height) {
    const { back, right, up } = axes(data.camera), focal = focalLength(width, height), corner = new T.Vector3();
    let far = 0;
    for (const x of [-1, 1]) for (const y of [-1, 1]) for (const z of [-1, 1]) {
      corner.set(x * data.half[0], y * data.half[1], z * data.half[2]);
      const wide = Math.max(Math.abs(corner.dot(right)) / (width / 2), Math.abs(corner.dot(up)) / (height / 2));
      far = Math.max(far, corner.dot(back) + (focal * wide) / data.camera.margin);
    }
    return far;
  }

  // A camera that looks at data.centre, which has one row or one for each frame, and that the mouse turns and moves.
  function makeCamera(data, canvas) {
    const camera = new T.PerspectiveCamera(), start = axes(data.camera).back;
    camera.up.set(0, 0, 1);
    const mouse = new T.OrbitControls(camera, canvas), centre = new T.Vector3(), moved = new T.Vector3();
    mouse.maxPolarAngle = Math.PI / 2 + 0.2;
    let distance = 0;
    const reset = () => {
      mouse.target.copy(centre);
      camera.position.copy(centre).addScaledVector(start, distance);
      mouse.update();
    };
    const resize = (width, height) => {
      const last = distance;
      distance = fit(data, width, height);
      camera.aspect = width / height;
      camera.fov = (360 / Math.PI) * Math.atan(height / 2 / focalLength(width, height));
      Object.assign(camera, { near: 0.02 * distance, far: 60 * distance });
      Object.assign(mouse, { minDistance: 0.1 * distance, maxDistance: 15 * distance });
      camera.updateProjectionMatrix();
      if (!last) reset();
      else camera.position.sub(mouse.target).multiplyScalar(distance / last).add(mouse.target);
    };
    const go = (frame) => {
      moved.fromArray(data.centre[Math.min(frame, data.centre.length - 1)]).sub(centre);
      centre.add(moved);
      mouse.target.add(moved);
      camera.position.add(moved);
    };
    centre.fromArray(data.centre[0]);
    return { camera, mouse, resize, go, reset };
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
    const canvas = make("canvas", "", root, { tabindex: 0, "aria-label": "drag to turn, wheel to zoom, right button to move" });
    const legend = make("div", "legend", root);
    for (const actor of data.actors) {
      if (!actor.label) continue;
      const item = make("span", "", legend);
      if (data.actors.length > 1) make("i", "", item).style.background = actor.colour;
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

  // Draws a frame of an element; the scene is built when it is first seen.
  function painter(canvas, data) {
    let stage = null;
    const view = makeCamera(data, canvas);
    const size = () => {
      const ratio = window.devicePixelRatio || 1;
      const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
      if (canvas.width === width && canvas.height === height && stage) return;
      Object.assign(canvas, { width, height });
      view.resize(canvas.clientWidth, canvas.clientHeight);
    };
    const draw = (frame) => {
      if (!canvas.clientWidth || !canvas.clientHeight) return;
      size();
      stage = stage || build(data);
      const style = getComputedStyle(canvas), { target } = view.mouse;
      stage.force.color.set(style.getPropertyValue("--force").trim());
      for (const { material } of stage.floors) material.color.set(style.getPropertyValue("--grid").trim());
      pose(stage, frame);
      view.go(frame);
      for (const { follow } of stage.floors) follow(target);
      stage.sun.target.position.copy(target);
      stage.sun.position.copy(target).addScaledVector(LIGHT, 4 * stage.radius);
      paint(canvas, stage.scene, view.camera);
    };
    return { draw, view };
  }

  function start(root) {
    if (!shared()) {
      make("p", "lacking", root).textContent = MISSING;
      return;
    }
    const data = JSON.parse(root.querySelector("script").textContent);
    const { canvas, button, slider, speed, clock } = controls(root, data);
    const { draw, view } = painter(canvas, data), end = data.time.at(-1);
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
      slider.value = frame;
      clock.textContent = `${data.time[frame].toFixed(2)} / ${end.toFixed(2)} s`;
      if (visible) draw(frame);
    };
    const ask = () => {
      if (!asked) requestAnimationFrame(tick);
      asked = true;
    };
    const tick = (stamp) => {
      asked = false;
      if (!visible) { last = null; return; }
      if (playing) {
        if (last !== null) now += ((stamp - last) / 1000) * Number(speed.value);
        last = stamp;
        if (now > end + 0.6) now = 0;
        ask();
      }
      redraw();
    };
    const play = (on) => {
      playing = on;
      button.textContent = on ? "❚❚" : "▶";
      button.setAttribute("aria-label", on ? "pause" : "play");
      if (on) { if (now >= end) now = 0; last = null; ask(); }
    };
    button.addEventListener("click", () => play(!playing));
    canvas.addEventListener("keydown", (e) => { if (e.key === " ") { e.preventDefault(); play(!playing); } });
    canvas.addEventListener("contextmenu", (e) => e.preventDefault());
    canvas.addEventListener("dblclick", () => { view.reset(); ask(); });
    slider.addEventListener("input", () => { play(false); now = data.time[Number(slider.value)]; redraw(); });
    view.mouse.addEventListener("change", ask);
    new ResizeObserver(ask).observe(canvas);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ask);
    new IntersectionObserver(([entry]) => {
      visible = entry.isIntersecting;
      if (visible) ask();
    }).observe(canvas);
    play(!window.matchMedia("(prefers-reduced-motion: reduce)").matches);
    redraw();
  }

  document.querySelectorAll(".flexor-animation").forEach(start);
})();
