package live

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxNotes limits the messages in a journal, maxApart the records of one message that is kept
// apart.
const (
	maxNotes = 40
	maxApart = 15
)

// Apart selects records with one message that are kept individually, in a table of their own.
type Apart struct {
	Message, Title string
	Columns        []string // the attributes to show
}

// Journal is a slog.Handler that passes records on, and keeps the newest warnings and errors
// for the page. Repetitions of a message are kept once, with their number.
type Journal struct {
	next   slog.Handler
	attrs  string // of WithAttrs, formatted
	groups string
	notes  *notes // shared by all derived handlers
}

// notes are the messages, the newest last.
type notes struct {
	mu    sync.Mutex
	list  []note
	apart []apartRecords // only their lists
}

// apartRecords has the newest records of one message.
type apartRecords struct {
	Apart
	list []note
}

type note struct {
	at      time.Time
	level   slog.Level
	message string
	attrs   string
	times   uint64
	cells   []Cell // for a message that is kept apart
}

// NewJournal returns a journal that passes records on to next.
func NewJournal(next slog.Handler, apart ...Apart) *Journal {
	n := &notes{}
	for _, a := range apart {
		n.apart = append(n.apart, apartRecords{Apart: a})
	}
	return &Journal{next: next, notes: n}
}

// Enabled implements slog.Handler: warnings are kept even if next does not log them.
func (j *Journal) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn || j.next.Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (j *Journal) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		j.notes.add(j.note(&r))
	}
	if !j.next.Enabled(ctx, r.Level) {
		return nil
	}
	return j.next.Handle(ctx, r)
}

// note returns what is kept of a record.
func (j *Journal) note(r *slog.Record) note {
	n := note{at: r.Time, level: r.Level, message: r.Message, times: 1}
	for i := range j.notes.apart {
		if a := &j.notes.apart[i]; a.Message == r.Message {
			n.cells = make([]Cell, len(a.Columns))
			r.Attrs(func(attr slog.Attr) bool {
				if k := slices.Index(a.Columns, attr.Key); k >= 0 {
					n.cells[k] = cellOf(attr)
				}
				return true
			})
			return n
		}
	}
	var b strings.Builder
	b.WriteString(j.attrs)
	r.Attrs(func(a slog.Attr) bool {
		writeAttr(&b, j.groups, a)
		return true
	})
	n.attrs = strings.TrimSpace(b.String())
	return n
}

// cellOf returns an attribute as a table cell.
func cellOf(a slog.Attr) Cell {
	switch v := a.Value.Resolve(); {
	case v.Kind() == slog.KindDuration:
		return Duration(v.Duration())
	case v.Kind() == slog.KindUint64:
		return Number(v.Uint64())
	case a.Key == "statement":
		return Code(v.String())
	default:
		return Text(v.String())
	}
}

// WithAttrs implements slog.Handler.
func (j *Journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *j
	var b strings.Builder
	b.WriteString(j.attrs)
	for _, a := range attrs {
		writeAttr(&b, j.groups, a)
	}
	out.next, out.attrs = j.next.WithAttrs(attrs), b.String()
	return &out
}

// WithGroup implements slog.Handler.
func (j *Journal) WithGroup(name string) slog.Handler {
	out := *j
	out.next, out.groups = j.next.WithGroup(name), j.groups+name+"."
	return &out
}

// maxNoteText limits the length of a note's attributes, in bytes.
const maxNoteText = 600

func writeAttr(b *strings.Builder, groups string, a slog.Attr) {
	if text := a.Value.Resolve().String(); a.Key != "" && b.Len() < maxNoteText {
		fmt.Fprintf(b, "%s%s=%s ", groups, a.Key, text[:min(len(text), maxNoteText)])
	}
}

func (n *notes) add(now note) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.apart {
		if a := &n.apart[i]; a.Message == now.message {
			if a.list = append(a.list, now); len(a.list) > maxApart {
				a.list = slices.Delete(a.list, 0, 1)
			}
			return
		}
	}
	if i := slices.IndexFunc(n.list, func(old note) bool { return old.message == now.message && old.level == now.level }); i >= 0 {
		now.times += n.list[i].times
		n.list = slices.Delete(n.list, i, i+1)
	} else if len(n.list) == maxNotes {
		n.list = slices.Delete(n.list, 0, 1)
	}
	n.list = append(n.list, now)
}

// tables returns the journal's tables for the page, the newest entries first.
func (j *Journal) tables() []Table {
	t := Table{
		Title: "Warnings and errors", Wide: true, Columns: Columns(":Last", "times", ":Level", ":Message", ":Of the last"),
		Empty: "Nothing was logged as a warning or an error.",
	}
	j.notes.mu.Lock()
	defer j.notes.mu.Unlock()
	var out []Table
	for _, a := range j.notes.apart {
		if len(a.list) == 0 {
			continue
		}
		apart := Table{Title: a.Title, Wide: true, Columns: Columns(":at")}
		for k, name := range a.Columns {
			apart.Columns = append(apart.Columns, Column{Name: name, Text: a.list[0].cells[k].Format == ""})
		}
		for _, n := range slices.Backward(a.list) {
			apart.Rows = append(apart.Rows, append([]Cell{Text(n.at.Format(time.DateTime))}, n.cells...))
		}
		out = append(out, apart)
	}
	for _, n := range slices.Backward(j.notes.list) {
		t.Rows = append(t.Rows, []Cell{
			Text(n.at.Format(time.DateTime)), Number(n.times), Text(n.level.String()).Alarm(n.level >= slog.LevelError), Text(n.message), Code(n.attrs),
		})
	}
	return append(out, t)
}
