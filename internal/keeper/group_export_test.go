//go:build linux

package keeper

// GroupName names the group of the keeper of a folder.
func GroupName(dir string) string { return groupName(dir) }

// Candidates returns where groups can be made below root.
func Candidates(root string) []Groups { return groupCandidates(root) }

// MakeGroup makes a group by means of a function that does what the kernel does, and returns how often its bound has counted.
func MakeGroup(g Groups, name string, limit int64, mkdir func(string) error) (kills int, err error) {
	t := g.groupNamed(name)
	t.mkdir = mkdir
	err = t.makeAnew(limit)
	return t.countKills(), err
}
