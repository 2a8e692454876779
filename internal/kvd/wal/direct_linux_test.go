package wal

import (
	"bytes"
	"testing"
)

// The blocks of a direct write are assembled in aligned memory.
func TestBlocksAllocateNothing(t *testing.T) {
	file := bytes.NewReader(make([]byte, 4*directBlock))
	d := &direct{size: 4 * directBlock}
	round := make([]byte, 2*directBlock)
	if n := testing.AllocsPerRun(100, func() {
		if err := d.block(file, round, directBlock/2); err != nil {
			panic(err)
		}
		d.have = 0 // so that the file is read
	}); n != 0 {
		t.Errorf("%v allocations for a write", n)
	}
}
