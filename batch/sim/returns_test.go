package sim

import "time"

// back is a client that will send again.
type back struct {
	at     time.Duration
	client int
}

// returns is a binary heap of clients by the time of their return. (The
// standard container/heap would box each one.)
type returns []back

func (r returns) less(i, j int) bool {
	return r[i].at < r[j].at || r[i].at == r[j].at && r[i].client < r[j].client
}

func (r returns) first() time.Duration {
	if len(r) == 0 {
		return never
	}
	return r[0].at
}

func (r *returns) push(at time.Duration, client int) {
	*r = append(*r, back{at, client})
	h := *r
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (r *returns) pop() int {
	h := *r
	client := h[0].client
	last := len(h) - 1
	h[0] = h[last]
	*r, h = h[:last], h[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return client
		}
		if child+1 < last && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return client
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
