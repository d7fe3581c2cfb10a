package claude

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf16"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/internal/process"
)

// sessionFiles are the session files of the program: <session>.jsonl in a folder per
// working folder, in the folder projects of its settings.
type sessionFiles struct {
	user     *process.User // owns them; nil: this process's own
	projects string
	folder   string // of the working folder, in projects
}

// SessionFile is where the program looks for a session of a working folder, in
// the folder of its settings.
func SessionFile(cwd, session string) string {
	return filepath.Join("projects", folderName(cwd), session+".jsonl")
}

// filesOf returns where the program of a request has its session files.
func (p *Provider) filesOf(o agent.Options) (sessionFiles, error) {
	cwd, err := filepath.Abs(o.Cwd) // "" is ours
	if err != nil {
		return sessionFiles{}, fmt.Errorf("claude: session files: %w", err)
	}
	if resolved, err := filepath.EvalSymlinks(cwd); err == nil { // it asks the system for its folder
		cwd = resolved
	}
	env := make(map[string]string)
	for _, kv := range agent.Environment(p.User.Environ(p.Environ), o.Env) {
		key, value, _ := strings.Cut(kv, "=")
		env[key] = value
	}
	config := env["CLAUDE_CONFIG_DIR"]
	if config == "" {
		home := env["HOME"]
		if home == "" {
			u, err := osuser.Current()
			if err != nil {
				return sessionFiles{}, fmt.Errorf("claude: session files: %w", err)
			}
			home = u.HomeDir
		}
		config = filepath.Join(home, ".claude")
	}
	if !filepath.IsAbs(config) {
		config = filepath.Join(cwd, config)
	}
	return sessionFiles{user: p.User, projects: filepath.Join(config, "projects"), folder: folderName(cwd)}, nil
}

// maxFolder is how much of a path names its folder; a hash is added to what is
// longer.
const maxFolder = 200

// folderName returns how the program names the folder of a working folder: by its
// path, with a dash for each UTF-16 unit that is no letter or digit. (It composes
// characters before; a path with decomposed ones is not found.)
func folderName(dir string) string {
	units := utf16.Encode([]rune(dir))
	var hash int32
	name := make([]byte, len(units))
	for i, u := range units {
		hash = hash<<5 - hash + int32(u)
		name[i] = '-'
		if u < 0x80 && (u >= '0' && u <= '9' || u >= 'a' && u <= 'z' || u >= 'A' && u <= 'Z') {
			name[i] = byte(u)
		}
	}
	if len(name) <= maxFolder {
		return string(name)
	}
	return string(name[:maxFolder]) + "-" + strconv.FormatInt(max(int64(hash), -int64(hash)), 36)
}

// isSafeID reports whether a session id is the name of a file and nothing else.
func isSafeID(session string) bool {
	return session != "" && len(session) <= 128 && strings.IndexFunc(session, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}

// openRoot opens the folder projects, which is made if create says so. Nothing
// leads out of it.
func (f sessionFiles) openRoot(create bool) (*os.Root, error) {
	if create {
		if err := os.MkdirAll(f.projects, 0o700); err != nil {
			return nil, err
		}
	}
	return os.OpenRoot(f.projects + "/.") // so that a pipe is an error
}

// openSession opens the file of a session: that of the working folder, or else of another
// one. here reports which. It fails with [fs.ErrNotExist] if there is none.
func (f sessionFiles) openSession(root *os.Root, session string) (file *os.File, here bool, err error) {
	if !isSafeID(session) {
		return nil, false, fmt.Errorf("session id %q: %w", session, fs.ErrInvalid)
	}
	file, err = workdir.OpenIn(root, filepath.Join(f.folder, session+".jsonl"))
	if !errors.Is(err, fs.ErrNotExist) {
		return file, true, err
	}
	others, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, false, err
	}
	for _, other := range others {
		if file, err := workdir.OpenIn(root, filepath.Join(other.Name(), session+".jsonl")); err == nil {
			return file, false, nil
		}
	}
	return nil, false, fs.ErrNotExist
}

// maxSession bounds the file of a session, and those of its sub-agents together, in bytes: agents write them, and may make them as large as
// they like without any room on the disk.
const maxSession = 256 << 20

// errLargeSession is the error of a file that is larger.
var errLargeSession = fmt.Errorf("a session file has more than %d MiB", maxSession>>20)

// readFile reads a file that isn't larger than a bound.
func readFile(file fs.File, most int64) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > most {
		return nil, errLargeSession
	}
	content := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	_, err = content.ReadFrom(io.LimitReader(file, most)) // it may grow
	return content.Bytes(), err
}

// readSession returns the file of a session, nil if there is none.
func (f sessionFiles) readSession(root *os.Root, session string) (content []byte, here bool, err error) {
	file, here, err := f.openSession(root, session)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = file.Close() }()
	content, err = readFile(file, maxSession)
	return content, here, err
}

// placeSession writes the file of a session for the working folder, whole or not at
// all.
func (f sessionFiles) placeSession(root *os.Root, session string, content []byte) error {
	if err := root.MkdirAll(f.folder, 0o700); err != nil {
		return err
	}
	name := filepath.Join(f.folder, session+".jsonl")
	temp := filepath.Join(f.folder, "."+session+"."+rand.Text())
	if err := writeFile(root, temp, content); err != nil {
		return errors.Join(err, root.Remove(temp))
	}
	return root.Rename(temp, name)
}

func writeFile(root *os.Root, name string, content []byte) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Sync(), file.Close())
}

// bestVersion returns the version of a session that goes furthest: the one that is
// there for the working folder (here), that of another working folder, or the
// one that is kept; nil if there is none.
func (f sessionFiles) bestVersion(session string, kept []byte) (content []byte, here bool, err error) {
	root, err := f.openRoot(false)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = root.Close() }()
	local, here, err := f.readSession(root, session)
	if errors.Is(err, errLargeSession) && len(kept) > 0 {
		return kept, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if len(kept) > 0 && !isFurther(local, kept) {
		return kept, false, nil
	}
	return local, here, nil
}

// putSession writes the file of a session for the working folder.
func (f sessionFiles) putSession(session string, content []byte) error {
	root, err := f.openRoot(true)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := f.placeSession(root, session, content); err != nil {
		return err
	}
	return f.giveToUser(session)
}

// giveToUser makes the user own the file of a session, and the folders that may have been made
// for it.
func (f sessionFiles) giveToUser(session string) error {
	home, err := os.OpenRoot(filepath.Dir(filepath.Dir(f.projects)))
	if err != nil {
		return err
	}
	defer func() { _ = home.Close() }()
	return f.user.OwnWay(home, filepath.Join(filepath.Base(filepath.Dir(f.projects)), "projects", f.folder, session+".jsonl"))
}

// isFurther reports whether a version of a session goes at least as far as
// another. They grow at their ends; of two that have parted the later one counts.
func isFurther(a, b []byte) bool {
	switch {
	case bytes.HasPrefix(a, b):
		return true
	case bytes.HasPrefix(b, wholeLines(a)):
		return false
	}
	return lastTime(a) > lastTime(b)
}

func wholeLines(b []byte) []byte { return b[:bytes.LastIndexByte(b, '\n')+1] }

// lastTime returns the time of the last line that has one, in Unix ms, or 0.
func lastTime(content []byte) int64 {
	for content = wholeLines(content); len(content) > 0; {
		begin := bytes.LastIndexByte(content[:len(content)-1], '\n') + 1
		var line struct {
			Timestamp string `json:"timestamp"`
		}
		if json.Unmarshal(content[begin:], &line) == nil && line.Timestamp != "" {
			return parseMillis(line.Timestamp)
		}
		content = content[:begin]
	}
	return 0
}

// fileEntry is what is needed of a line of a session file to fork the session there.
type fileEntry struct {
	UUID       string `json:"uuid"`
	Sidechain  bool   `json:"isSidechain"`
	Attachment struct {
		SourceUUID string `json:"source_uuid"`
	} `json:"attachment"`
	Message struct {
		ID      string          `json:"id"`
		Content json.RawMessage `json:"content"`
	} `json:"message"`
}

// contentBlock is a block of a message that makes a call or has a result.
type contentBlock struct {
	Type      string `json:"type"`
	ID        string `json:"id"`
	ToolUseID string `json:"tool_use_id"`
}

func (e fileEntry) contentBlocks() []contentBlock {
	var blocks []contentBlock
	_ = json.Unmarshal(e.Message.Content, &blocks) // a string has none
	return blocks
}

// pointIn finds the line of a session file that a point names and returns the
// line's own id, "" if it isn't there: a message that was sent while the agent worked
// stands in the file under another id. late is how many results of calls that
// were made together with the point's own come after it: the program keeps those too.
func pointIn(content []byte, point string) (id string, late int) {
	made := make(map[string]string) // message by call
	together := make(map[string]bool)
	for line := range bytes.Lines(content) {
		var e fileEntry
		if json.Unmarshal(line, &e) != nil || e.Sidechain {
			continue
		}
		found := id == "" && (e.UUID == point || e.Attachment.SourceUUID == point)
		if found {
			id = cmp.Or(e.UUID, point)
		}
		for _, b := range e.contentBlocks() {
			switch {
			case b.Type == "tool_use":
				made[b.ID] = e.Message.ID
			case b.Type == "tool_result" && found:
				together[made[b.ToolUseID]] = true
			case b.Type == "tool_result" && together[made[b.ToolUseID]]:
				late++
			}
		}
	}
	return id, late
}
