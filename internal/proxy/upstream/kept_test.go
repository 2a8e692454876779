package upstream

import "testing"

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
	k.Close()
	k.Put(a, "late")
	k.Close()
	if len(closed) != 2 || closed[0] != "second" || closed[1] != "late" {
		t.Errorf("closed %q", closed)
	}
}
