package native

import (
	"context"
	"strings"
	"testing"
)

// brokenModel is a model whose answers wake can't read.
type brokenModel struct{ model }

func (brokenModel) streamAnswer(context.Context, modelQuestion, func(streamPiece) error) (modelAnswer, error) {
	panic("no such block")
}

func TestDefectInAnAnswer(t *testing.T) {
	if _, err := readAnswer(t.Context(), brokenModel{}, modelQuestion{}, nil); err == nil || !strings.Contains(err.Error(), "no such block") {
		t.Errorf("%v", err)
	}
}
