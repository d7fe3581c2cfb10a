// The timeline of a run: lanes of its agents on one canvas. The server has put what falls into one pixel together.
(() => {
  'use strict';
  const canvas = document.querySelector('#timeline');
  if (!canvas) return;
  const pen = canvas.getContext('2d'), laneH = 24, left = 130, top = 20, tip = 18;
  let data = null, view = null, asking = false, again = false, hover = null, drag = null;
  const color = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  const colors = () => Object.fromEntries(['ink', 'dim', 'line', 'soft', 'card', 'bad', 'wait', 'tool', 'think', 'told', 'ok', 'accent'].map(n => [n, color(n)]));
  const narrow = () => canvas.clientWidth < 600;
  const gutter = () => narrow() ? 8 : left;

  // ask asks for the picture anew: one request at a time, and not more often than it is answered; one that the server had no time for, again.
  async function ask() {
    if (asking) { again = true; return; }
    if (!canvas.offsetParent) return; // another view is looked at
    asking = true;
    const begun = performance.now(), px = Math.max(50, Math.min(4000, Math.round(canvas.clientWidth - gutter() - 8)));
    const q = new URLSearchParams({px});
    if (view) { q.set('from', Math.floor(view.from)); q.set('to', Math.ceil(view.to)); }
    try {
      const r = await fetch(canvas.dataset.src + '?' + q);
      if (r.ok) { data = await r.json(); tellKinds(); draw(); } else if (r.status >= 500) { again = true; if (!data) say('the log is being read …'); }
    } catch { /* the page says that it is away */ } finally {
      asking = false;
      if (again) { again = false; setTimeout(ask, Math.max(300, 2 * (performance.now() - begun))); }
    }
  }

  const at = t => gutter() + (t - data.from) / (data.to - data.from) * (canvas.clientWidth - gutter() - 8);
  const time = x => data.from + (x - gutter()) / (canvas.clientWidth - gutter() - 8) * (data.to - data.from);

  function draw() {
    const lanes = data.lanes || [], c = colors(), row = narrow() ? laneH + 14 : laneH, h = top + Math.max(1, lanes.length) * row + 10, dpr = devicePixelRatio || 1;
    canvas.style.height = Math.min(h, 16000) + 'px';
    canvas.width = canvas.clientWidth * dpr;
    canvas.height = Math.min(h, 16000) * dpr;
    pen.setTransform(dpr, 0, 0, dpr, 0, 0);
    pen.font = '12px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    axis(c, h);
    lanes.forEach((lane, i) => drawLane(lane, top + i * row + (narrow() ? 14 : 0), c));
    cursor(c, h);
    if (hover) note(c);
  }

  // cursor shows where the slider stands.
  function cursor(c, h) {
    const now = document.body.dataset.view === 'time' && document.querySelector('#moment [data-ts]');
    if (!now) return;
    const x = at(+now.dataset.ts);
    if (x < gutter() - 1 || x > canvas.clientWidth - 7) return;
    pen.fillStyle = c.accent; pen.fillRect(x - 1, top - 4, 2, h);
    pen.beginPath(); pen.moveTo(x - 5, top - 6); pen.lineTo(x + 5, top - 6); pen.lineTo(x, top + 1); pen.fill();
  }

  // tellKinds has the legend name what is there.
  function tellKinds() {
    const names = {tool: 'call', error: 'failed'}, kinds = new Set((data.lanes || []).flatMap(l => (l.marks || []).map(m => names[m.kind] || m.kind)));
    for (const e of document.querySelectorAll('.legend [data-kind]')) e.hidden = !kinds.has(e.dataset.kind);
  }

  // say writes a line where the picture is to be.
  function say(text) {
    const dpr = devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * dpr;
    canvas.height = canvas.clientHeight * dpr;
    pen.setTransform(dpr, 0, 0, dpr, 0, 0);
    pen.font = '12px system-ui, sans-serif';
    pen.fillStyle = color('dim');
    pen.fillText(text, 8, 20);
  }

  function axis(c, h) {
    const n = narrow() ? 3 : 6;
    for (let i = 0; i <= n; i++) {
      const t = data.from + (data.to - data.from) * i / n, x = at(t);
      pen.fillStyle = c.line; pen.fillRect(x, top - 4, 1, h);
      pen.fillStyle = c.dim; pen.textAlign = i === n ? 'right' : i ? 'center' : 'left';
      pen.fillText(elapsed(t - data.first), x, 9);
    }
    pen.textAlign = 'left';
  }
  const elapsed = ms => { const s = Math.max(0, ms / 1000); return data.to - data.from < 2000 && s < 60 ? Math.round(1000 * s) + ' ms' : s < 60 ? s.toFixed(1) + ' s' : s < 3600 ? Math.floor(s / 60) + ':' + String(Math.floor(s % 60)).padStart(2, '0') : Math.floor(s / 3600) + 'h' + String(Math.floor(s % 3600 / 60)).padStart(2, '0'); };

  // Failures, waits and alerts are drawn last: nothing covers them.
  const last = ['retry', 'compaction', 'resumed', 'failed', 'denied', 'wait', 'alert'];
  function drawLane(lane, y, c) {
    const mid = y + laneH / 2, x0 = Math.max(gutter(), at(lane.begin)), x1 = Math.min(canvas.clientWidth - 8, at(lane.end));
    pen.fillStyle = c.soft;
    if (x1 > x0) pen.fillRect(x0, y + 4, Math.max(2, x1 - x0), laneH - 8);
    pen.fillStyle = lane.parent ? c.dim : c.ink;
    pen.fillText(cut((lane.parent ? '↳ ' : '') + (lane.node === '_run' ? 'run' : lane.node), narrow() ? canvas.clientWidth - 20 : left - 14), 8, narrow() ? y - 5 : mid);
    const marks = lane.marks || [];
    pen.save(); pen.beginPath(); pen.rect(gutter(), y, canvas.clientWidth - gutter() - 6, laneH); pen.clip();
    for (const m of marks) if (!last.includes(m.kind)) mark(m, y, c);
    for (const m of marks) if (last.includes(m.kind)) mark(m, y, c);
    pen.restore();
  }
  const cut = (s, w) => { if (pen.measureText(s).width <= w) return s; while (s && pen.measureText(s + '…').width > w) s = s.slice(0, -1); return s + '…'; };
  function mark(m, y, c) {
    const x = at(m.at), w = m.end ? Math.max(2, at(m.end) - x) : 2;
    switch (m.kind) {
      case 'call': pen.globalAlpha = m.open ? .75 : .45; pen.fillStyle = c.tool; pen.fillRect(x, y + 7, w, laneH - 14); pen.globalAlpha = 1; break;
      case 'tool': pen.fillStyle = c.tool; pen.fillRect(x, y + 6, 2, laneH - 12); break;
      case 'text': pen.fillStyle = c.dim; pen.fillRect(x, y + 9, 2, laneH - 18); break;
      case 'thinking': pen.fillStyle = c.think; pen.fillRect(x, y + 9, 2, laneH - 18); break;
      case 'user': pen.fillStyle = c.told; pen.fillRect(x, y + 4, 2, laneH - 8); break;
      case 'wait': pen.fillStyle = c.wait; pen.globalAlpha = .8; pen.fillRect(x, y + 4, Math.max(3, w), laneH - 8); pen.globalAlpha = 1; break;
      case 'failed': case 'error': pen.fillStyle = c.bad; pen.fillRect(x - 1, y + 3, 3, laneH - 6); break;
      case 'denied': pen.strokeStyle = c.bad; pen.lineWidth = 1.5; pen.strokeRect(x - 1, y + 5, 4, laneH - 10); break;
      case 'retry': pen.strokeStyle = c.bad; pen.lineWidth = 2; pen.beginPath(); pen.arc(x, y + laneH / 2, 4, 0, 7); pen.stroke(); break;
      case 'compaction': pen.strokeStyle = c.think; pen.lineWidth = 2; pen.beginPath(); pen.moveTo(x, y + 6); pen.lineTo(x + 5, y + 12); pen.lineTo(x, y + 18); pen.lineTo(x - 5, y + 12); pen.closePath(); pen.stroke(); break;
      case 'resumed': pen.fillStyle = c.ok; pen.fillRect(x - 1, y + 1, 3, laneH - 2); break;
      case 'alert': pen.fillStyle = c.bad; pen.beginPath(); pen.moveTo(x, y + 1); pen.lineTo(x + 5, y + 10); pen.lineTo(x - 5, y + 10); pen.fill(); break;
      default: pen.fillStyle = c.line; pen.fillRect(x, y + 8, 1, laneH - 16);
    }
  }

  // find returns the mark at a place, the weightiest first.
  function find(x, y) {
    if (!data) return null;
    const row = narrow() ? laneH + 14 : laneH, lane = (data.lanes || [])[Math.floor((y - top) / row)];
    if (!lane) return null;
    let best = null, dist = 6;
    for (const m of lane.marks || []) {
      const a = at(m.at), b = m.end ? at(m.end) : a, d = x < a ? a - x : x > b ? x - b : 0, weight = d - (last.includes(m.kind) ? 3 : m.kind === 'call' ? -2 : 0);
      if (d <= 6 && weight < dist) { best = {...m, node: lane.node}; dist = weight; }
    }
    return best && {m: best, x, y};
  }
  function note(c) {
    const m = hover.m, text = cut(`${m.node === '_run' ? 'run' : m.node} · ${m.kind}${m.n > 1 ? ' ×' + m.n : ''}${m.text ? ' · ' + m.text : ''} · ${elapsed(m.at - data.first)}${m.end ? ' – ' + elapsed(m.end - data.first) : ''}`, canvas.clientWidth - 40);
    const w = pen.measureText(text).width + 16, x = Math.max(2, Math.min(hover.x + 12, canvas.clientWidth - w - 6)), y = Math.min(hover.y + tip, canvas.clientHeight - 24);
    pen.fillStyle = c.ink; pen.beginPath(); pen.roundRect(x, y, w, 22, 6); pen.fill();
    pen.fillStyle = c.card; pen.fillText(text, x + 8, y + 11);
  }

  function zoom(factor, center) {
    const from = center - (center - data.from) / factor, to = center + (data.to - center) / factor;
    look(from, to);
  }
  function look(from, to) {
    const width = Math.max(20, to - from);
    from = Math.max(data.first, Math.min(from, data.last - width));
    to = Math.min(data.last, from + width);
    view = from <= data.first && to >= data.last ? null : {from, to};
    data.from = from; data.to = to;
    draw(); ask();
  }
  const place = e => { const r = canvas.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  canvas.addEventListener('wheel', e => { if (!data || !e.ctrlKey && !e.shiftKey && Math.abs(e.deltaX) <= Math.abs(e.deltaY) && !e.altKey) return; e.preventDefault(); const w = data.to - data.from; if (e.ctrlKey || e.altKey) zoom(e.deltaY < 0 ? 1.25 : .8, time(place(e)[0])); else look(data.from + w * (e.deltaX || e.deltaY) / 800, data.to + w * (e.deltaX || e.deltaY) / 800); }, {passive: false});
  canvas.addEventListener('pointerdown', e => { if (data) { drag = {x: place(e)[0], from: data.from, to: data.to, moved: false}; canvas.setPointerCapture(e.pointerId); } });
  canvas.addEventListener('pointermove', e => {
    if (!data) return;
    const [x, y] = place(e);
    if (drag) { const d = (drag.x - x) / (canvas.clientWidth - gutter() - 8) * (drag.to - drag.from); if (Math.abs(drag.x - x) > 4) { drag.moved = true; hover = null; look(drag.from + d, drag.to + d); } return; }
    const was = hover; hover = find(x, y); if (was || hover) draw();
  });
  canvas.addEventListener('pointerup', e => { const d = drag; drag = null; if (d && !d.moved) { const f = find(...place(e)); if (f && f.m.pos) window.wakeTravel(f.m.pos) || window.wakeDetails(f.m.pos, true); } });
  canvas.addEventListener('pointerleave', () => { hover = null; if (data) draw(); });
  canvas.addEventListener('dblclick', e => data && zoom(2.5, time(place(e)[0])));
  canvas.addEventListener('keydown', e => {
    if (!data) return;
    const w = data.to - data.from, mid = (data.from + data.to) / 2;
    const keys = {ArrowLeft: () => look(data.from - w / 5, data.to - w / 5), ArrowRight: () => look(data.from + w / 5, data.to + w / 5), '+': () => zoom(1.5, mid), '=': () => zoom(1.5, mid), '-': () => zoom(1 / 1.5, mid), 0: () => look(data.first, data.last)};
    if (Object.hasOwn(keys, e.key)) { e.preventDefault(); keys[e.key](); }
  });
  document.addEventListener('changed', ask);
  document.addEventListener('viewed', ask);
  document.addEventListener('travelled', () => data && draw());
  addEventListener('resize', () => { if (data) draw(); ask(); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => data && draw());
  ask();
})();
