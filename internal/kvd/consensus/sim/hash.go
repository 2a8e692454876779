package sim

// hash is 64-bit FNV-1a. It only distinguishes runs and states.
type hash struct{ sum uint64 }

func newHash() hash { return hash{0xcbf29ce484222325} }

func (h *hash) bytes(b []byte) {
	h.number(uint64(len(b)))
	for _, c := range b {
		h.sum = (h.sum ^ uint64(c)) * 0x100000001b3
	}
}

func (h *hash) string(s string) {
	h.number(uint64(len(s)))
	for i := range len(s) {
		h.sum = (h.sum ^ uint64(s[i])) * 0x100000001b3
	}
}

func (h *hash) number(v uint64) {
	h.sum = (h.sum ^ v) * 0x100000001b3
	h.sum ^= h.sum >> 29
}
