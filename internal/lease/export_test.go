package lease

// Sightings returns how many keys the keeper remembers.
func (k *Keeper) Sightings() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.seen)
}
