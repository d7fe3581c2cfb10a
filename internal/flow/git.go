package flow

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Git is the repository that a workspace is a clone of.
type Git struct {
	URL string // as git takes it
	Ref string // branch, tag or commit; "" is the repository's default branch
}

const gitPrefix = "git:"

// Git returns the repository of a flow that clones it into its workspaces.
func (d *Definition) Git() (Git, bool) {
	if !strings.HasPrefix(d.Workspace, gitPrefix) {
		return Git{}, false
	}
	g, err := parseGit(d.Workspace)
	return g, err == nil
}

// gitSchemes are the ways to get a repository. Others, such as ext::, run
// programs.
var gitSchemes = []string{"https", "http", "ssh", "git", "file"}

// refPattern are the names of branches, tags and commits, none of which can be
// taken for an option.
var refPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/+-]{0,254}$`) })

// hostPattern is the host of a URL, with the user's name and the port.
var hostPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9][^/@]*@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?(/|$)`)
})

// scpPattern is user@host:path, as ssh is written for short.
var scpPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^:]`)
})

// parseGit reads "git: URL@ref". The ref follows the last @ of the path; so a
// path with an @ needs a ref.
func parseGit(s string) (Git, error) {
	s = strings.TrimSpace(strings.TrimPrefix(s, gitPrefix))
	if s == "" {
		return Git{}, errors.New("git: names no repository; it is git: URL@ref")
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return Git{}, errors.New("git: a URL has no spaces and no control characters")
	}
	path, err := gitPath(s)
	if err != nil {
		return Git{}, err
	}
	g := Git{URL: s}
	if at := strings.LastIndexByte(s[path:], '@'); at >= 0 {
		g.URL, g.Ref = s[:path+at], s[path+at+1:]
		if !refPattern().MatchString(g.Ref) || strings.Contains(g.Ref, "..") {
			return Git{}, fmt.Errorf("git: %q is not the name of a branch, a tag or a commit", g.Ref)
		}
	}
	return g, nil
}

// gitPath returns where the path of a repository begins.
func gitPath(s string) (int, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case ok && slices.Contains(gitSchemes, scheme):
		if !hostPattern().MatchString(rest) && (scheme != "file" || !strings.HasPrefix(rest, "/")) {
			return 0, errors.New("git: the URL is malformed")
		}
		return len(s) - len(rest) + pathOf(rest), nil
	case ok:
		return 0, fmt.Errorf("git: %q repositories aren't supported; it is one of %s", scheme, strings.Join(gitSchemes, ", "))
	case strings.HasPrefix(s, "/"):
		return 0, nil
	case scpPattern().MatchString(s):
		return strings.IndexByte(s, ':'), nil
	}
	return 0, errors.New("git: it needs a URL, user@host:path or an absolute path")
}

// pathOf returns where the path behind a host begins: at the end if there is none.
func pathOf(rest string) int {
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return i
	}
	return len(rest)
}
