package claude

import (
	"cmp"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// emitEffects emits what a call that succeeded changed.
func (n *Normalizer) emitEffects(c *toolCall, structured wire.Raw) {
	switch c.name {
	case "Write", "Edit", "MultiEdit", "NotebookEdit":
		n.fileChanged(c, structured)
	case "TodoWrite":
		n.todoWrite(c, structured)
	case "TaskCreate", "TaskUpdate", "TaskList":
		n.taskChanged(c, structured)
	}
}

func (n *Normalizer) fileChanged(c *toolCall, structured wire.Raw) {
	path := cmp.Or(c.input.TextAt("file_path"), c.input.TextAt("notebook_path"))
	if path == "" {
		return
	}
	change := ""
	switch {
	case structured.TextAt("type") == "create":
		change = "created"
	case structured.TextAt("type") == "update", c.name != "Write":
		change = "modified"
	}
	n.emitForThread(c.thread, &wire.FileChanged{Path: path, Change: change})
}

func (n *Normalizer) todosOf(t *thread) *todos {
	l := n.todos[t.Parent]
	if l == nil {
		l = new(todos)
		n.todos[t.Parent] = l
	}
	return l
}

// todoWrite replaces the list.
func (n *Normalizer) todoWrite(c *toolCall, structured wire.Raw) {
	items := structured.Get("newTodos")
	if items.Items() == nil {
		items = c.input.Get("todos")
	}
	l := n.todosOf(c.thread)
	l.items = nil
	for _, item := range items.Items() {
		l.items = append(l.items, todoOf(item))
	}
	n.emitTodos(c.thread, l)
}

// todoOf reads an item of TodoWrite; a bare string is what is to be done.
func todoOf(item wire.Raw) wire.Todo {
	if s, ok := item.Text(); ok {
		return wire.Todo{Content: s, Status: "pending"}
	}
	todo := wire.Todo{
		ID: item.TextAt("id"), Content: item.TextAt("content"), Status: item.TextAt("status"), ActiveForm: item.TextAt("activeForm"),
	}
	todo.Status = cmp.Or(todo.Status, "pending")
	todo.Rest = remainingFields(item, "id", "content", "status", "activeForm")
	return todo
}

// remainingFields returns the fields of a map that aren't named, sorted.
func remainingFields(item wire.Raw, known ...string) []wire.Field {
	var fields []wire.Field
	for name, v := range entriesOf(item) {
		if !slices.Contains(known, name) {
			fields = append(fields, wire.Field{Name: name, Value: v})
		}
	}
	slices.SortFunc(fields, func(a, b wire.Field) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return fields
}

// taskChanged follows the tools that newer versions have instead of TodoWrite:
// they change single items.
func (n *Normalizer) taskChanged(c *toolCall, structured wire.Raw) {
	l := n.todosOf(c.thread)
	switch c.name {
	case "TaskCreate":
		l.items = append(l.items, wire.Todo{
			ID: structured.TextAt("task", "id"), Content: c.input.TextAt("subject"), Status: "pending", ActiveForm: c.input.TextAt("activeForm"),
		})
	case "TaskUpdate":
		if !l.applyUpdate(c.input) {
			return
		}
	case "TaskList":
		if !l.replaceItems(structured.Get("tasks").Items()) {
			return
		}
	}
	n.emitTodos(c.thread, l)
}

// applyUpdate applies the input of TaskUpdate. It reports whether anything changed.
func (l *todos) applyUpdate(input wire.Raw) bool {
	id := input.TextAt("taskId")
	i := slices.IndexFunc(l.items, func(t wire.Todo) bool { return t.ID == id })
	if i < 0 {
		if id == "" {
			return false
		}
		l.items = append(l.items, wire.Todo{ID: id, Content: "#" + id, Status: "pending"})
		i = len(l.items) - 1
	}
	before, t := l.items[i], &l.items[i]
	for field, v := range map[*string]string{
		&t.Status: input.TextAt("status"), &t.Content: input.TextAt("subject"), &t.ActiveForm: input.TextAt("activeForm"),
	} {
		if v != "" {
			*field = v
		}
	}
	if t.Status == "deleted" {
		l.items = slices.Delete(l.items, i, i+1)
		return true
	}
	return t.Status != before.Status || t.Content != before.Content || t.ActiveForm != before.ActiveForm
}

// replaceItems takes a whole list. It reports whether it differs.
func (l *todos) replaceItems(tasks []wire.Raw) bool {
	var items []wire.Todo
	changed := len(tasks) != len(l.items)
	for i, task := range tasks {
		t := wire.Todo{ID: task.TextAt("id"), Content: task.TextAt("subject"), Status: task.TextAt("status")}
		t.Status = cmp.Or(t.Status, "pending")
		if j := slices.IndexFunc(l.items, func(o wire.Todo) bool { return o.ID == t.ID }); j >= 0 {
			t.ActiveForm = l.items[j].ActiveForm
		}
		changed = changed || l.items[i].ID != t.ID || l.items[i].Status != t.Status || l.items[i].Content != t.Content
		items = append(items, t)
	}
	l.items = items
	return changed
}

func (n *Normalizer) emitTodos(t *thread, l *todos) {
	p := &wire.TodoChanged{Items: slices.Clone(l.items), Total: len(l.items)}
	for _, item := range l.items {
		if item.Status == "completed" {
			p.Done++
		}
	}
	n.emitForThread(t, p)
}
