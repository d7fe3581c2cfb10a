package lease

// Sightings returns how many keys the holder remembers.
func (h *Holder) Sightings() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seen)
}
