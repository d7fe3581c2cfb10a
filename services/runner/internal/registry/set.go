package registry

import (
	"maps"
	"slices"
	"sync"
)

// Set holds the ids of what this process is at work on.
type Set struct {
	mu  sync.Mutex
	ids map[string]bool
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{ids: map[string]bool{}} }

// Enter reports whether the id was not there before.
func (s *Set) Enter(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[id] {
		return false
	}
	s.ids[id] = true
	return true
}

// Leave takes an id out.
func (s *Set) Leave(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
}

// Has reports whether an id is there.
func (s *Set) Has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// Len returns how many there are.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// List returns the ids in order.
func (s *Set) List() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.ids))
}
