package subjects

// SnapshotKey returns the key of a run's state, <run>.
func (Names) SnapshotKey(run string) string { return Escape(run) }

// ParseSnapshotKey is the reverse of [Names.SnapshotKey]; see [Names.ParseEvent].
func (Names) ParseSnapshotKey(key string) (run string, err error) {
	return firstID(parseTokens(key, 1))
}

// BookmarkKey returns the key of a bookmark, <run>.<label>.
func (Names) BookmarkKey(run, label string) string { return Escape(run) + "." + Escape(label) }

// BookmarkKeys returns the filter of the keys of a run's bookmarks.
func (Names) BookmarkKeys(run string) string { return Escape(run) + ".*" }

// ParseBookmarkKey is the reverse of [Names.BookmarkKey]; see [Names.ParseEvent].
func (Names) ParseBookmarkKey(key string) (run, label string, err error) {
	return pairOfIDs(parseTokens(key, 2))
}

// SessionKey returns the key of WAKE_LEASES of the session of a runner's process, <runner>.<process>.
func (Names) SessionKey(runner, process string) string { return Escape(runner) + "." + Escape(process) }

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
