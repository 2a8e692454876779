// Package kvtest loads a cluster and checks every answer, for tests that kill, pause and
// separate its replicas.
package kvtest

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weirdb/weir/kv"
)

// Record records the operations of clients and their outcomes. Strong operations on a key must
// be linearizable, a counter must include every acknowledged increment exactly once, and
// sessions must see their own weak writes. Safe for concurrent use.
type Record struct {
	tb    testing.TB
	start time.Time

	mu      sync.Mutex
	history map[string][]porcupine.Operation // by key
	acked   map[string]int64                 // increments by counter
	unknown map[string]int64
	ops     int
}

// NewRecord returns an empty record.
func NewRecord(tb testing.TB) *Record {
	return &Record{
		tb: tb, start: time.Now(), history: map[string][]porcupine.Operation{},
		acked: map[string]int64{}, unknown: map[string]int64{},
	}
}

// Forget drops the histories, after a check. Counters are kept.
func (r *Record) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.history)
}

// Operations returns the number of completed operations.
func (r *Record) Operations() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ops
}

type registerOp struct {
	write bool
	value string
}

// registers is the model for porcupine: puts and gets of a key.
var registers = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		op := input.(registerOp)
		if op.write {
			return true, op.value
		}
		return output.(string) == state.(string), state
	},
}

func (r *Record) now() int64 { return int64(time.Since(r.start)) }

func (r *Record) note(key string, op porcupine.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops++
	r.history[key] = append(r.history[key], op)
}

// Put writes a key strongly.
func (r *Record) Put(ctx context.Context, c *kv.Client, client int, key, value string) {
	call := r.now()
	_, err := c.Put(ctx, key, []byte(value))
	end := r.now()
	var unknown *kv.UnknownError
	switch {
	case errors.As(err, &unknown):
		end = 1 << 62 // it may take effect at any later time
	case err != nil:
		return // it was not sent
	}
	r.note(key, porcupine.Operation{ClientId: client, Input: registerOp{true, value}, Call: call, Output: "", Return: end})
}

// Get reads a key strongly and reports whether there was an answer.
func (r *Record) Get(ctx context.Context, c *kv.Client, client int, key string) bool {
	call := r.now()
	item, err := c.Get(ctx, key)
	if err != nil && !errors.Is(err, kv.ErrNotFound) {
		return false
	}
	r.note(key, porcupine.Operation{ClientId: client, Input: registerOp{}, Call: call, Output: string(item.Value), Return: r.now()})
	return true
}

// Increment increments a counter.
func (r *Record) Increment(ctx context.Context, c *kv.Client, key string) {
	_, err := c.Increment(ctx, key, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops++
	var unknown *kv.UnknownError
	switch {
	case err == nil:
		r.acked[key]++
	case errors.As(err, &unknown):
		r.unknown[key]++
	}
}

// OwnWeak writes a key of this client weakly, and reads it weakly.
func (r *Record) OwnWeak(ctx context.Context, c *kv.Client, key, value string) {
	if _, err := c.Put(ctx, key, []byte(value), kv.Weak()); err != nil {
		return
	}
	r.mu.Lock()
	r.ops++
	r.mu.Unlock()
	item, err := c.Get(ctx, key, kv.Weak())
	switch {
	case errors.Is(err, kv.ErrNotFound):
		r.tb.Errorf("own weak write %s of %s is not found", value, key)
	case err == nil && string(item.Value) != value:
		r.tb.Errorf("own weak write %s of %s, then weak read %s", value, key, item.Value)
	}
}

// Check checks all histories, and reads the counters by get, which must answer. It returns the
// number of histories, and of those that could not be decided within 20 s.
func (r *Record) Check(get func(key string) (item kv.Item, found bool)) (histories, undecided int) {
	r.mu.Lock()
	acked, unknown, history := maps.Clone(r.acked), maps.Clone(r.unknown), maps.Clone(r.history)
	r.mu.Unlock()
	for key, least := range acked {
		item, _ := get(key)
		got, err := strconv.ParseInt(string(item.Value), 10, 64)
		if err != nil || got < least || got > least+unknown[key] {
			r.tb.Errorf("%s = %s (%v) after %d acknowledged increments and %d of unknown outcome", key, item.Value, err, least, unknown[key])
		}
	}
	for key, ops := range history {
		histories++
		switch porcupine.CheckOperationsTimeout(registers, ops, 20*time.Second) {
		case porcupine.Illegal:
			r.tb.Errorf("%s: a history of %d operations is not linearizable", key, len(ops))
		case porcupine.Unknown:
			undecided++
		}
	}
	return histories, undecided
}

// Write records a strong write by other means than package kv. do reports whether the write was
// answered and, if not, whether it may have happened.
func (r *Record) Write(client int, key, value string, do func() (answered, unknown bool)) {
	call := r.now()
	answered, unknown := do()
	end := r.now()
	switch {
	case answered:
	case unknown:
		end = 1 << 62
	default:
		return
	}
	r.note(key, porcupine.Operation{ClientId: client, Input: registerOp{true, value}, Call: call, Output: "", Return: end})
}

// Read records a strong read by other means; "" stands for a key that does not exist.
func (r *Record) Read(client int, key string, do func() (value string, answered bool)) {
	call := r.now()
	value, answered := do()
	if answered {
		r.note(key, porcupine.Operation{ClientId: client, Input: registerOp{}, Call: call, Output: value, Return: r.now()})
	}
}
