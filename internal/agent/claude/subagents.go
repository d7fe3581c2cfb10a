package claude

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/workdir"
)

// SubAgents reads the files that the program keeps of the sub-agents of a session, given the session's own file: in a folder of the
// session, by older versions beside it.
func SubAgents(fsys fs.FS, main string) ([]agent.SubAgent, error) {
	session := strings.TrimSuffix(main, ".jsonl")
	var names []string
	err := fs.WalkDir(fsys, path.Join(session, "subagents"), func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fs.SkipDir
		case err == nil && d.Type().IsRegular() && path.Ext(name) == ".jsonl":
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	beside, err := fs.Glob(fsys, path.Join(path.Dir(main), "agent-*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, name := range beside {
		if firstSession(fsys, name) == path.Base(session) {
			names = append(names, name)
		}
	}
	agents := make([]agent.SubAgent, 0, len(names))
	room := int64(maxSession)
	for _, name := range names {
		content, err := readNamed(fsys, name, room)
		if err != nil {
			return nil, err
		}
		room -= int64(len(content))
		var about struct {
			ToolUseID string `json:"toolUseId"`
		}
		if meta, err := readNamed(fsys, strings.TrimSuffix(name, ".jsonl")+".meta.json", maxMeta); err == nil {
			_ = json.Unmarshal(meta, &about) // older versions have none
		}
		agents = append(agents, agent.SubAgent{File: path.Base(name), Call: about.ToolUseID, Content: content})
	}
	return agents, nil
}

// maxMeta bounds, in bytes, a file that names the call of a sub-agent, and a first line that names its session.
const maxMeta = 1 << 20

func readNamed(fsys fs.FS, name string, most int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return readFile(f, most)
}

// firstSession returns the session that the first line of a file is of.
func firstSession(fsys fs.FS, name string) string {
	f, err := fsys.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // it was only read
	var line struct {
		Session string `json:"sessionId"`
	}
	_ = json.NewDecoder(io.LimitReader(f, maxMeta)).Decode(&line) // another file's is none
	return line.Session
}

// subAgents implements [agent.Capabilities.SubAgents].
func (p *Provider) subAgents(o agent.Options, session string) ([]agent.SubAgent, error) {
	d := p.withDefaults(agent.Request{})
	f, err := d.filesOf(o)
	if err != nil {
		return nil, err
	}
	root, err := f.openRoot(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // it was only read
	file, _, err := f.openSession(root, session)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_ = file.Close() // its name is asked for
	name, err := filepath.Rel(f.projects, file.Name())
	if err != nil {
		return nil, err
	}
	return SubAgents(workdir.FS{Root: root}, filepath.ToSlash(name))
}
