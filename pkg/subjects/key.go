package subjects

// SnapshotKey returns the key of a run's state, <run>.
func (Names) SnapshotKey(run string) string { return Escape(run) }

// ParseSnapshotKey is the reverse of [Names.SnapshotKey]; see [Names.ParseEvent].
func (Names) ParseSnapshotKey(key string) (run string, err error) {
	return firstID(parseTokens(key, 1))
}

// BookmarkKey returns the key of a bookmark, <run>.<label>.
func (Names) BookmarkKey(run, label string) string { return Escape(run) + "." + Escape(label) }

// ParseBookmarkKey is the reverse of [Names.BookmarkKey]; see [Names.ParseEvent].
func (Names) ParseBookmarkKey(key string) (run, label string, err error) {
	return pairOfIDs(parseTokens(key, 2))
}

// LeaseKey returns the key of a node's lease, <run>.<node>; that of the run
// itself has node [RunNode].
func (Names) LeaseKey(run, node string) string { return Escape(run) + "." + Escape(node) }

// PresenceKey returns the key of WAKE_LEASES under which a runner says that it is
// there, _.runner-<id>.
func (n Names) PresenceKey(runner string) string { return n.LeaseKey(NoRun, "runner-"+runner) }

// RunLeases returns the filter of the leases of a run and its nodes.
func (Names) RunLeases(run string) string { return Escape(run) + ".*" }

// ParseLeaseKey is the reverse of [Names.LeaseKey]; see [Names.ParseEvent].
func (Names) ParseLeaseKey(key string) (run, node string, err error) {
	return pairOfIDs(parseTokens(key, 2))
}

// StateKey returns the key of a service's state for a run, <service>.<run>;
// what it keeps for no run in particular has run [NoRun].
func (Names) StateKey(service, run string) string { return Escape(service) + "." + Escape(run) }

// ServiceStates returns the filter of a service's states.
func (Names) ServiceStates(service string) string { return Escape(service) + ".*" }

// ParseStateKey is the reverse of [Names.StateKey]; see [Names.ParseEvent].
func (Names) ParseStateKey(key string) (service, run string, err error) {
	return pairOfIDs(parseTokens(key, 2))
}

func pairOfIDs(ids []string, err error) (a, b string, _ error) {
	if ids == nil {
		return "", "", err
	}
	return ids[0], ids[1], err
}
