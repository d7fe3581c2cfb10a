package workspace

import (
	"regexp"
	"slices"
	"strings"
)

// gitFolder is what repositories keep themselves in.
const gitFolder = ".git"

// isGitState reports whether a snapshot holds a file or folder of .git itself: what says where the repository stands. Hooks
// and what names other places stay behind; so do locks.
func isGitState(name string) bool {
	switch name {
	case "HEAD", "packed-refs", "index", "objects", "refs", "logs", "info", "shallow", "description", "config",
		"reftable", "rebase-merge", "rebase-apply", "sequencer", "AUTO_MERGE", "COMMIT_EDITMSG", "SQUASH_MSG":
		return true
	}
	return strings.HasSuffix(name, "_HEAD") || strings.HasPrefix(name, "MERGE_") || strings.HasPrefix(name, "BISECT_") ||
		strings.HasPrefix(name, "sharedindex.")
}

// gitProblem says why a repository with such a file can't travel, "" if it can.
func gitProblem(path []string, content []byte) string {
	switch strings.Join(path, "/") {
	case "objects/info/alternates", "objects/info/http-alternates":
		return "borrows objects of another repository (alternates)"
	case "info/sparse-checkout":
		return "is a sparse checkout"
	case "config":
		_, _, problem := filterConfig(content)
		return problem
	}
	return ""
}

var (
	sectionLine = regexp.MustCompile(`^\s*\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\s*\]\s*$`)
	valueLine   = regexp.MustCompile(`^\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*?))?\s*$`)
)

// What a configuration says of where the files of the repository are.
var (
	bareLine     = regexp.MustCompile(`(?mi)^[ \t]*bare\b.*\n`)
	worktreeLine = regexp.MustCompile(`(?mi)^[ \t]*worktree[ \t]*=[ \t]*([^"\\\n]+)\n`)
)

// filterConfig returns what travels of a repository's configuration: keys that are known to name no command, written as git
// writes them. It also returns the names of the others, and why the repository can't travel, if it can't.
func filterConfig(content []byte) (kept []byte, dropped []string, problem string) {
	var out strings.Builder
	var section, header string
	wrote := true
	lines := strings.Split(string(content), "\n")
	for i := 0; i < len(lines); i++ {
		line, continued := strings.TrimSuffix(lines[i], "\r"), false
		for last := line; strings.HasSuffix(last, `\`) && i+1 < len(lines); continued = true { // it is no line of ours any more
			i++
			last = lines[i]
		}
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';' {
			continue
		}
		if m := sectionLine.FindStringSubmatch(line); m != nil && !continued {
			section, header, wrote = strings.ToLower(m[1]), trimmed, false
			continue
		}
		key, value := "", ""
		if m := valueLine.FindStringSubmatch(line); m != nil && !continued {
			key, value = strings.ToLower(m[1]), m[2]
		}
		if p := configProblem(section, key, value); p != "" {
			return nil, nil, p
		}
		if !isHarmless(section, key, value) {
			dropped = append(dropped, section+"."+key)
			continue
		}
		if !wrote {
			out.WriteString(header + "\n")
			wrote = true
		}
		out.WriteString("\t" + trimmed + "\n")
	}
	slices.Sort(dropped)
	return []byte(out.String()), slices.Compact(dropped), ""
}

func configProblem(section, key, value string) string {
	off := strings.EqualFold(value, "false") || value == "0"
	switch {
	case section == "extensions" && key == "partialclone", key == "promisor" && !off:
		return "is a partial clone"
	case section == "core" && (key == "sparsecheckout") && !off:
		return "is a sparse checkout"
	case section == "extensions" && key == "worktreeconfig" && !off:
		return "has a configuration of its own per worktree (extensions.worktreeConfig), as a sparse checkout has"
	case section == "core" && key == "worktree":
		return "has its files elsewhere (core.worktree)"
	}
	return ""
}

// isHarmless reports whether a key of a configuration names neither a command nor a file.
func isHarmless(section, key, value string) bool {
	switch section {
	case "core":
		return slices.Contains([]string{
			"repositoryformatversion", "filemode", "bare", "ignorecase", "precomposeunicode", "symlinks", "autocrlf",
			"eol", "safecrlf", "logallrefupdates", "quotepath", "abbrev",
		}, key)
	case "extensions":
		return key == "objectformat" || key == "refstorage"
	case "user", "author", "committer":
		return key == "name" || key == "email"
	case "branch":
		return key == "remote" || key == "merge" || key == "rebase"
	case "remote":
		return key == "fetch" || (key == "url" || key == "pushurl") && isPlainURL(value)
	case "init":
		return key == "defaultbranch"
	case "submodule":
		return key == "active" || key == "branch" || key == "url" && isPlainURL(value)
	}
	return false
}

// isPlainURL reports whether a URL runs no program of its own and has no password.
func isPlainURL(s string) bool {
	if strings.Contains(s, "::") || strings.HasPrefix(strings.TrimLeft(s, `"`), "-") {
		return false
	}
	_, rest, ok := strings.Cut(s, "://")
	if !ok {
		return true
	}
	host, _, _ := strings.Cut(rest, "/")
	user, _, named := strings.Cut(host, "@")
	return !named || !strings.Contains(user, ":")
}

// isSharedState reports whether linked worktrees of a repository have a part of it in common.
func isSharedState(name string) bool {
	switch strings.TrimSuffix(name, ".lock") {
	case "objects", "refs", "packed-refs", "config", "info", "shallow", "description", "modules", "reftable":
		return true
	}
	return false
}

// maxConfig bounds the files that say what a repository is.
const maxConfig = 1 << 20
