package lease

// Sightings returns how many sessions the holder remembers.
func (h *Holder) Sightings() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seen)
}

// Forget has the holder see a session last two times to live ago, as one whose watch is behind.
func (h *Holder) Forget(process string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.seen[process]
	s.at, s.revision = s.at.Add(-2*h.ttl), s.revision-1
	h.seen[process] = s
}
