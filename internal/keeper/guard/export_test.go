//go:build linux

package guard

// MakeGroup makes a group by means of a function that does what the kernel does, and returns how often its bound has counted.
func MakeGroup(g Groups, name string, limit int64, mkdir func(string) error) (kills int, err error) {
	t := g.groupNamed(name)
	t.mkdir = mkdir
	err = t.makeFolders(limit)
	return t.CountKills(), err
}
