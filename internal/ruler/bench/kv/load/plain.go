package kvload

import (
	"context"
	"encoding/binary"
	"fmt"
)

// Plain drives the floor of weir bench kv: a table of values behind a connection for
// each stream, whose answers come in any order.
//
//	request  bytes behind this field (4), slot (4), 0 to read or 1 to write (1), length of the key (1), key, value
//	answer   bytes behind this field (4), slot (4), 1 if there is a value (1), value
//
// Numbers are little-endian.
type Plain struct{ Addr string }

// PlainHead is the length of a request without key and value, PlainAnswer that of an answer
// without a value, and PlainWrite the code of a write.
const (
	PlainHead   = 10
	PlainAnswer = 9
	PlainWrite  = 1
)

// Promises implements Driver.
func (*Plain) Promises() Promises { return Promises{OwnWrites: true} }

// Open implements Driver.
func (d *Plain) Open(ctx context.Context, _, _ int) (Client, error) {
	conn, err := dial(ctx, d.Addr)
	if err != nil {
		return nil, err
	}
	return &plainClient{line: line{conn: conn}, in: make([]byte, 64<<10)}, nil
}

// Near implements Driver.
func (d *Plain) Near() Driver { return d }

type plainClient struct {
	line
	out  []byte
	in   []byte
	have int // bytes of in that were read and not yet parsed
}

// Issue implements Client.
func (c *plainClient) Issue(slot int, op *Op) {
	kind, value := byte(0), []byte(nil)
	if op.Class.Write() {
		kind, value = PlainWrite, op.Value
	}
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(PlainHead-4+len(op.Key)+len(value)))
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(slot))
	c.out = append(c.out, kind, byte(len(op.Key)))
	c.out = append(append(c.out, op.Key...), value...)
}

// Poll implements Client.
func (c *plainClient) Poll(ended func(slot int, a Answer)) error {
	if len(c.out) > 0 {
		if _, err := c.conn.Write(c.out); err != nil {
			return c.lost(err)
		}
		c.out = c.out[:0]
	}
	for some := false; !some; {
		n, err := c.conn.Read(c.in[c.have:])
		if c.have += n; err != nil {
			return c.lost(err)
		}
		at := 0
		for rest := c.in[:c.have]; len(rest) >= 4; rest = c.in[at:c.have] {
			size := 4 + int(binary.LittleEndian.Uint32(rest))
			if size > len(c.in) || size < PlainAnswer {
				return fmt.Errorf("%w: an answer of %d bytes", errProtocol, size)
			}
			if size > len(rest) {
				break
			}
			ended(int(binary.LittleEndian.Uint32(rest[4:])), Answer{Value: rest[PlainAnswer:size], Found: rest[8] == 1})
			at, some = at+size, true
		}
		c.have = copy(c.in, c.in[at:c.have])
	}
	return nil
}
