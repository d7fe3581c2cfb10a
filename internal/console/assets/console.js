// What pages of the console do by themselves: stay up to date, send orders, obey keys. Texts of agents come
// only within HTML that the server has made of them.
(() => {
  'use strict';
  const $ = (s, e = document) => e.querySelector(s), $$ = (s, e = document) => [...e.querySelectorAll(s)];
  const body = document.body, runID = body.dataset.run || '';

  // Signing in: the address that wake prints has the token behind #, which no server and no log sees.
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (given) {
    history.replaceState(null, '', location.pathname + location.search);
    fetch('signin', {method: 'POST', body: new URLSearchParams({token: given})}).then(r => {
      if (r.ok) location.reload(); else tell('This token is not of this console.', true);
    });
  }

  // tell shows a text for a while.
  function tell(text, bad, link) {
    const box = document.createElement('div');
    box.textContent = text;
    if (bad) box.className = 'no';
    if (link) { const a = document.createElement('a'); a.href = link; a.textContent = ' Open it'; box.append(a); }
    $('#told').append(box);
    setTimeout(() => box.remove(), bad ? 12000 : 6000);
  }

  // merge makes an element what another one is, touching only what differs, and not what somebody fills in.
  function merge(old, next) {
    const known = new Map();
    for (const e of old.children) if (e.id) known.set(e.id, e);
    let at = old.firstChild;
    for (const want of [...next.childNodes]) {
      const same = want.id && known.get(want.id) || (at && at.nodeType === want.nodeType && at.nodeName === want.nodeName && !at.id === !want.id && (!want.id || at.id === want.id) ? at : null);
      if (!same) { old.insertBefore(want, at); continue; }
      if (same !== at) old.insertBefore(same, at); else at = at.nextSibling;
      if (same.nodeType === 1) mergeElement(same, want);
      else if (same.data !== want.data) same.data = want.data;
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  }
  function mergeElement(e, want) {
    if (e.isEqualNode(want) || e.tagName === 'FORM' && e.dataset.touched) return;
    const on = e.classList.contains('on'), open = e.open;
    for (const a of [...e.attributes]) if (!want.hasAttribute(a.name) && a.name !== 'open') e.removeAttribute(a.name);
    for (const a of want.attributes) if (e.getAttribute(a.name) !== a.value) e.setAttribute(a.name, a.value);
    if (on) e.classList.add('on');
    if (e.tagName === 'DETAILS') e.open = open;
    if (e.children.length || want.children.length || e.textContent !== want.textContent) merge(e, want);
  }
  document.addEventListener('input', e => { const f = e.target.closest('form[data-order]'); if (f) f.dataset.touched = '1'; });

  // refresh asks for a region anew: one request at a time, and pauses twice as long as one took, within bounds: a machine that is busy has less to do.
  const asking = new Map();
  async function refresh(region) {
    if (asking.get(region)) { asking.set(region, 'again'); return; }
    asking.set(region, 'now');
    const begun = performance.now();
    try {
      const r = await fetch(region.dataset.region, {headers: {Accept: 'application/json'}});
      if (r.status === 403) { location.reload(); return; }
      if (!r.ok) { const e = await r.json().catch(() => null); if (e && e.error && region.id === 'log') region.textContent = e.error.message; return; }
      const next = document.createElement('template');
      next.innerHTML = await r.text();
      const end = region.scrollHeight - region.scrollTop - region.clientHeight < 60;
      merge(region, next.content);
      if ('follow' in region.dataset && following() && end) region.scrollTop = region.scrollHeight;
    } catch { /* the stream says that it is away */ } finally {
      const again = asking.get(region) === 'again';
      asking.delete(region);
      if (again) setTimeout(refresh, Math.min(500, Math.max(150, 2 * (performance.now() - begun))), region);
    }
  }
  const following = () => { const f = $('#follow'); return !f || f.checked; };
  const isInbox = e => e.id === 'waits' || e.id === 'inbox';
  const isSeen = e => (e.offsetParent !== null || isInbox(e)) && (e.id !== 'log' || following());
  // refreshAll asks for all that is seen. A page that nobody looks at waits until it is.
  let stale = false;
  function refreshAll() {
    if (stale = document.hidden) return;
    for (const e of $$('[data-region]')) if (isSeen(e)) refresh(e);
    document.dispatchEvent(new Event('changed'));
  }
  document.addEventListener('visibilitychange', () => { if (stale) refreshAll(); });
  // refreshChanged asks for what a change may have touched: the list of what waits is asked for if that has changed.
  function refreshChanged(c) {
    const concerned = c.many || !runID || (c.runs || []).includes(runID);
    if (stale = stale || document.hidden && (concerned || c.waits)) return;
    for (const e of $$('[data-region]')) if (isSeen(e) && (isInbox(e) ? c.many || c.waits : concerned)) refresh(e);
    if (concerned) document.dispatchEvent(new Event('changed'));
  }

  // The stream of changes. A page that was away asks for everything anew.
  if ('live' in body.dataset) {
    const away = $('#away');
    const stream = new EventSource('live');
    let lost = false;
    stream.addEventListener('begin', () => { away.textContent = ''; if (lost) refreshAll(); lost = false; });
    stream.onerror = () => { lost = true; away.textContent = 'not connected'; };
    stream.onmessage = e => {
      const c = JSON.parse(e.data);
      away.textContent = c.away ? 'the recorder is away' : '';
      refreshChanged(c);
    };
    setInterval(refreshAll, 15000);
  }

  // Times count on their own, in the words in which the server has written them.
  const two = (s, a, unit, b, smaller) => Math.floor(s / a) + unit + (s % a >= b ? Math.floor(s % a / b) + smaller : '');
  const span = ms => { const s = Math.max(0, Math.floor(ms / 1000)); return s < 60 ? s + 's' : s < 3600 ? Math.floor(s / 60) + 'm' : s < 86400 ? two(s, 3600, 'h', 60, 'm') : two(s, 86400, 'd', 3600, 'h'); };
  setInterval(() => { const now = Date.now(); for (const t of $$('time[data-since]')) { const text = span(now - t.dataset.since); if (t.textContent !== text) t.textContent = text; } }, 1000);

  // Orders.
  document.addEventListener('submit', async e => {
    const form = e.target;
    if (!('order' in form.dataset)) return;
    e.preventDefault();
    const by = e.submitter;
    if (by && by.dataset.sure && !confirm(by.dataset.sure)) return;
    const data = new URLSearchParams(new FormData(form, by));
    const buttons = $$('button', form);
    buttons.forEach(b => b.disabled = true);
    try {
      const r = await fetch(form.action, {method: 'POST', body: data, headers: {Accept: 'application/json'}});
      const v = await r.json();
      if (v.error) tell(v.error.message, true);
      else tell((v.ok ? '' : 'Refused: ') + v.text + (v.hint ? ' — ' + v.hint : ''), !v.ok, v.run ? 'runs/' + encodeURIComponent(v.run) : '');
      if (v.ok) { delete form.dataset.touched; if (form.closest('.ask')) form.closest('.ask').remove(); else form.reset(); }
      const link = v.link && $('[data-link]', form);
      if (link) { link.value = v.link; link.parentElement.hidden = false; link.select(); }
      refreshAll();
    } catch { tell('wake can’t be reached; nothing was sent', true); } finally { buttons.forEach(b => b.disabled = false); }
  });

  // Filters change their list as they are filled in, and the address with it.
  for (const form of $$('form[data-live-filter]')) {
    let later;
    const apply = () => {
      const q = new URLSearchParams([...new FormData(form)].filter(([, v]) => v));
      const list = $(form.dataset.liveFilter);
      list.dataset.region = list.dataset.region.split('?')[0] + (q.size ? '?' + q : '');
      history.replaceState(null, '', location.pathname + (q.size ? '?' + q : '') + location.hash);
      refresh(list);
    };
    form.addEventListener('input', e => { if (e.target.id === 'follow') return; clearTimeout(later); later = setTimeout(apply, 200); });
    form.addEventListener('submit', e => { e.preventDefault(); clearTimeout(later); apply(); });
  }

  // Details, earlier lines, tabs.
  async function load(url, into) {
    const r = await fetch(url, {headers: {Accept: 'application/json'}});
    if (r.ok) into.innerHTML = await r.text();
    else { const e = await r.json().catch(() => null); into.textContent = e && e.error ? e.error.message : 'it can’t be had'; }
  }
  window.wakeDetails = async (pos, chosen) => {
    const d = $('#details');
    if (!d || !pos) return;
    show('log');
    await load('runs/' + encodeURIComponent(runID) + '/entry?pos=' + pos, d);
    if (chosen && matchMedia('(max-width:900px)').matches) d.scrollIntoView({block: 'start'}); // below the log there
  };
  // wakeTravel moves the slider to a mark of the timeline, if it is looked at.
  window.wakeTravel = pos => { if (body.dataset.view !== 'time') return false; slider.elements.at.value = pos; travel(); return true; };
  document.addEventListener('click', e => {
    const line = e.target.closest('[data-pos]'), more = e.target.closest('[data-load]'), tab = e.target.closest('[data-tab]');
    if (more) { const into = $(more.dataset.into); if (follow && into.id === 'log') follow.checked = false; if (into.dataset.region) into.dataset.region = more.dataset.load; load(more.dataset.load, into).then(() => into.scrollTop = 0); return; }
    if (tab) { show(tab.dataset.tab); return; }
    if (line && !getSelection().toString()) { select(line); window.wakeDetails(line.dataset.pos, true); }
    if (e.target.closest('[data-keys]')) $('#keys').showModal();
  });
  const follow = $('#follow');
  if (follow) follow.addEventListener('change', () => { const log = $('#log'); if (follow.checked) { const u = new URL(log.dataset.region, document.baseURI); u.searchParams.delete('offset'); log.dataset.region = u.pathname + u.search; refresh(log).then(() => log.scrollTop = log.scrollHeight); } });
  const slider = $('#slider');
  let busy = false, wanted = 0, playing = 0, started = false;
  function show(name) {
    const pane = $('#pane-' + name);
    if (!pane) return;
    for (const t of $$('[data-tab]')) t.setAttribute('aria-selected', String(t.dataset.tab === name));
    for (const p of $$('[role=tabpanel]')) p.hidden = p !== pane;
    body.dataset.view = name;
    document.dispatchEvent(new Event('viewed'));
    if (name === 'log' && started) refresh($('#nodes'));
    history.replaceState(null, '', location.pathname + location.search + (name === 'log' ? '' : '#' + name));
    if (pane.dataset.lazy) load(pane.dataset.lazy, pane);
    if (name === 'time' && !$('#moment').children[1]) travel();
  }

  // Parts that are asked for when they are opened.
  document.addEventListener('toggle', e => { const d = e.target, into = d.dataset && d.dataset.open && d.open && d.lastElementChild; if (into && !into.hasChildNodes()) load(d.dataset.open, into); }, true);

  // Time: what the slider stands at is asked of the server, one position after the other.
  const withAt = (url, at) => { const u = new URL(url, document.baseURI); u.searchParams.set('at', at); return u.pathname + u.search; };
  async function travel() {
    const at = slider.elements.at.value;
    slider.elements.shown.value = at;
    for (const e of $$('[data-at]')) e.value = at;
    wanted = at;
    if (busy) return;
    busy = true;
    try {
      while (wanted) { const next = wanted; wanted = 0; const open = ($('#moment .files') || {}).open; await load(withAt(slider.dataset.src, next), $('#moment')); if (open && $('#moment .files')) $('#moment .files').open = true; }
      const u = new URL(location); u.searchParams.set('at', at); history.replaceState(null, '', u);
      document.dispatchEvent(new CustomEvent('travelled', {detail: at}));
    } finally { busy = false; }
  }
  if ($('.tabs')) { show(location.hash.slice(1) || 'log'); if (!$('[aria-selected=true]')) show('log'); started = true; const log = $('#log'); log.scrollTop = log.scrollHeight; }
  function stepTime(n) { const a = slider.elements.at; a.value = Number(a.value) + n; travel(); }
  if (slider) {
    slider.elements.at.addEventListener('input', travel);
    $('[data-play]').addEventListener('click', e => {
      if (playing) { clearInterval(playing); playing = 0; e.target.classList.remove('on'); e.target.setAttribute('aria-label', 'Play'); return; }
      const a = slider.elements.at;
      if (a.value === a.max) a.value = a.min;
      e.target.classList.add('on'); e.target.setAttribute('aria-label', 'Pause');
      playing = setInterval(() => { if (!busy) stepTime(Number(slider.elements.speed.value)); if (a.value === a.max) e.target.click(); }, 250);
    });
  }

  // Keys.
  let first = '';
  const rows = () => $$('[data-row]').filter(e => e.offsetParent !== null);
  function select(row) { for (const e of $$('.on')) e.classList.remove('on'); if (row) { row.classList.add('on'); row.scrollIntoView({block: 'nearest'}); } }
  function move(n) { const all = rows(), at = all.indexOf($('.on')); select(all[Math.min(all.length - 1, Math.max(0, at < 0 ? (n > 0 ? 0 : all.length - 1) : at + n))]); const on = $('.on'); if (on && on.dataset.pos) window.wakeDetails(on.dataset.pos); }
  document.addEventListener('keydown', e => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.target.closest('input,select,textarea')) { if (e.key === 'Escape') e.target.blur(); return; }
    if (e.target.tagName === 'CANVAS' || $('dialog[open]')) return;
    const on = $('.on'), act = what => { const ask = on && on.matches('[data-ask]') ? on : $('[data-ask]'), b = ask && $(`[data-do=${what}]`, ask); if (b) { select(ask); if (b.tagName === 'INPUT') b.focus(); else if (on === ask) b.click(); } };
    const key = first + e.key;
    first = '';
    const keys = {
      '?': () => $('#keys').showModal(), j: () => move(1), k: () => move(-1), i: () => select($('[data-ask]')), a: () => act('a'), d: () => act('d'), r: () => act('r'),
      Enter: () => { const a = on && !e.target.closest('button,a,summary') && $('a', on); if (a) a.click(); else return true; },
      '/': () => { const f = $$('[data-focus="/"]').find(x => x.offsetParent !== null); if (f) f.focus(); },
      g: () => { first = 'g'; }, gh: () => location.assign('./'), gf: () => location.assign('search'), gs: () => location.assign('spend'), gy: () => location.assign('system'),
      f: () => follow && follow.click(), ',': () => slider && stepTime(-1), '.': () => slider && stepTime(1), Escape: () => select(null),
      1: () => show('log'), 2: () => show('time'), 3: () => show('spend'), 4: () => show('alerts'), 5: () => show('steer'),
    };
    if (Object.hasOwn(keys, key) && !keys[key]()) e.preventDefault();
  });
})();
