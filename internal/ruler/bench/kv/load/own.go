package kvload

import "fmt"

// own checks what a stream reads of the key that only it writes. Its writes are numbered from
// 1, and one is in flight at a time, so that an answer must be at least as new as the last
// write that had ended when the read began, and at most as new as the last one that has begun.
type own struct {
	key, stream int
	name        string
	begun       uint64
	ended       uint64
	busy        bool // a write is in flight
	lost        bool // a write has failed: it may take effect at any time, so nothing can be checked
}

// newOwn includes the run in the key's name: values of an earlier run on the same store must
// not count.
func newOwn(w Workload, stream int, run string) *own {
	n := w.Keys + stream
	return &own{key: n, stream: stream, name: keyName(n) + ":" + run}
}

// judge returns what is wrong with the answer to a read that began when floor writes had ended,
// and whether it could be checked at all.
func (o *own) judge(value []byte, found bool, size int, floor uint64) (wrong string, judged bool) {
	if o.lost {
		return "", false
	}
	if !found {
		if floor > 0 {
			return fmt.Sprintf("stream %d finds no value of its own key after %d writes of it", o.stream, floor), true
		}
		return "", true
	}
	key, stream, count, ok := origin(value, size)
	switch {
	case !ok || key != o.key || stream != o.stream:
		return fmt.Sprintf("stream %d reads a value of its own key that it never wrote", o.stream), true
	case count < floor:
		return fmt.Sprintf("stream %d reads write %d of its own key after write %d had ended", o.stream, count, floor), true
	case count > o.begun:
		return fmt.Sprintf("stream %d reads write %d of its own key and has written %d", o.stream, count, o.begun), true
	}
	return "", true
}

// judgeShared returns what is wrong with the answer to a read of a shared key.
func judgeShared(value []byte, found bool, size, key int) string {
	if !found {
		return ""
	}
	from, _, _, ok := origin(value, size)
	switch {
	case !ok:
		return fmt.Sprintf("%s has a value of %d bytes that was never written", keyName(key), len(value))
	case from != key:
		return fmt.Sprintf("a read of %s returned the value of %s", keyName(key), keyName(from))
	}
	return ""
}
