package upstream

import (
	"slices"
	"testing"
)

func TestKept(t *testing.T) {
	t.Parallel()
	var closed []string
	k := NewKept(func(c string) { closed = append(closed, c) })
	a, b := Endpoint{"a:1", "a:1"}, Endpoint{"b:1", "b:1"}
	if c, ok := k.Take(a); ok {
		t.Errorf("an empty one had %q", c)
	}
	k.Put(a, "first")
	k.Put(b, "second")
	if c, ok := k.Take(a); !ok || c != "first" {
		t.Errorf("took %q, %v", c, ok)
	}
	if _, ok := k.Take(a); ok {
		t.Error("it was taken twice")
	}
	k.Put(a, "third")
	k.Only([]Endpoint{b}) // a's name has another address now
	k.Put(a, "too late")
	if _, ok := k.Take(a); ok {
		t.Error("one to an endpoint that is gone was kept")
	}
	k.Close()
	k.Put(b, "late")
	k.Close()
	if !slices.Equal(closed, []string{"third", "too late", "second", "late"}) {
		t.Errorf("closed %q", closed)
	}
}
