package wire

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// shape is how a struct lies on the wire: its fields in wire order, as their tags
// `wire:"name,required"` tell. Instead of required there may be nonempty, see [presence];
// document marks a [Raw] that holds values, shared an id that many events have in common.
type shape []shapeField

type shapeField struct {
	name     string
	presence presence
	offset   uintptr
	visit    visitKind

	skips bool    // it is left out if the word at size is zero, as in most events
	size  uintptr // offset of the length or of the pointer, or of the number itself
}

// visitKind visits a field of one kind at its address.
type visitKind func(f *fields, name string, at unsafe.Pointer, p presence)

// visitShape visits the fields of the struct at an address. It passes over those that have nothing
// to do with the event, without a call for each.
func (f *fields) visitShape(s shape, at unsafe.Pointer) {
	for i := range s {
		field := &s[i]
		switch {
		case f.mode == encoding && field.skips && *(*uintptr)(unsafe.Add(at, field.size)) == 0:
		case f.mode == decoding && !f.isNext(field.name):
			f.passField(field.presence)
		default:
			field.visit(f, field.name, unsafe.Add(at, field.offset), field.presence)
		}
	}
}

// visitTags visits the tagged fields of a struct that is no payload.
func visitTags[T any](f *fields, v *T) {
	f.visitShape(shapeOf(reflect.TypeFor[T]()), unsafe.Pointer(v))
}

// envelope is the shape of what all events have. Every event asks for it.
var envelope = sync.OnceValue(func() shape { return readShape(reflect.TypeFor[Event]()) }) //nolint:gochecknoglobals // constant

// shapes holds the shape of every such struct that was met.
var shapes sync.Map //nolint:gochecknoglobals // a cache: types don't change

func shapeOf(t reflect.Type) shape {
	if s, ok := shapes.Load(t); ok {
		return s.(shape)
	}
	s, _ := shapes.LoadOrStore(t, readShape(t))
	return s.(shape)
}

func readShape(t reflect.Type) (s shape) {
	for field := range t.Fields() {
		tag, ok := field.Tag.Lookup("wire")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(tag, ",")
		options := strings.Split(rest, ",")
		one := shapeField{name: name, offset: field.Offset, visit: kindOf(field.Type)}
		switch {
		case slices.Contains(options, "required"):
			one.presence = required
		case slices.Contains(options, "nonempty"):
			one.presence = nonEmpty
		}
		switch field.Type.Kind() {
		case reflect.String, reflect.Slice:
			one.skips, one.size = one.presence == optional, field.Offset+unsafe.Sizeof(field.Offset) // behind the pointer
		case reflect.Int, reflect.Pointer, reflect.Map:
			one.skips, one.size = one.presence == optional, field.Offset
		}
		switch {
		case slices.Contains(options, "document"):
			one.visit = visitWith((*fields).document)
		case slices.Contains(options, "shared"):
			one.visit = visitWith((*fields).id)
		}
		s = append(s, one)
	}
	return s
}

func visitWith[T any](visit func(f *fields, name string, v *T, p presence)) visitKind {
	return func(f *fields, name string, at unsafe.Pointer, p presence) { visit(f, name, (*T)(at), p) }
}

// visitWords visits a string out of a set.
func visitWords[T ~string](allowed ...T) visitKind {
	return visitWith(func(f *fields, name string, v *T, p presence) { enum(f, name, v, p, allowed...) })
}

// kindOf returns what visits fields of a type.
func kindOf(t reflect.Type) visitKind {
	switch reflect.Zero(t).Interface().(type) {
	case string:
		return visitWith((*fields).str)
	case int:
		return visitWith((*fields).int)
	case int64:
		return visitWith((*fields).int64)
	case uint64:
		return visitWith((*fields).uint64)
	case bool:
		return visitWith((*fields).bool)
	case *int:
		return visitWith((*fields).optInt)
	case *int64:
		return visitWith((*fields).optInt64)
	case *float64:
		return visitWith((*fields).optFloat)
	case Raw:
		return visitWith((*fields).raw)
	case []string:
		return visitWith((*fields).strs)
	case map[string]string:
		return visitWith((*fields).strMap)
	case TokenUsage:
		return visitWith(object[TokenUsage])
	case *TokenUsage:
		return visitWith(optObject[TokenUsage])
	case map[string]ModelUsage:
		return visitWith(objectMap[ModelUsage])
	case []Todo:
		return visitWith(objects[Todo])
	case Patch:
		return visitWith(object[Patch])
	case PatchOp:
		return visitWords(PatchSet, PatchMerge)
	case FlowStatus:
		return visitWords(FlowStatusComplete, FlowStatusFailed)
	case Severity:
		return visitWords(SeverityInfo, SeverityWarning, SeverityError, SeverityCritical)
	case Priority:
		return visitWords(PriorityInfo, PriorityQuestion, PriorityBlocker)
	case ToolCallState:
		return visitWords(ToolPending, ToolApprovalRequired, ToolApproved, ToolExecuting, ToolCompleted, ToolFailed, ToolDenied, ToolSealedState)
	case Decision:
		return visitWords(DecisionAllow, DecisionDeny)
	case CheckpointKind:
		return visitWords(CheckpointTurn, CheckpointSubturn, CheckpointSFP, CheckpointLabelled)
	case AuditResult:
		return visitWords(AuditPass, AuditFail, AuditWarn)
	}
	panic(fmt.Sprintf("wire: fields of type %s have no kind", t))
}
