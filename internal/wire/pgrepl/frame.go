package pgrepl

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Position is a client's progress as reported to the server. Each field is the position after
// the last byte in question.
type Position struct {
	Written LSN
	// Flushed is durable at the client: the server may remove the log before it.
	Flushed LSN
	Applied LSN
}

// At returns the Position with l written, flushed and applied.
func At(l LSN) Position { return Position{l, l, l} }

// Frame is one message of a stream: data or a keepalive.
type Frame struct {
	// Data is the log from Start, or a message of the output plugin. It is nil in a keepalive.
	Data  []byte
	Start LSN
	// End is how far the server has sent (keepalive) or how far its log reaches (data). In a
	// logical stream, every transaction that committed before the End of a keepalive has been
	// sent.
	End    LSN
	SentAt time.Time
	// ReplyRequested asks for a status update. The next Receive sends it, so that the handler
	// of the keepalive can set a new position first.
	ReplyRequested bool
}

// Keepalive reports whether the frame carries no data.
func (f *Frame) Keepalive() bool { return f.Data == nil }

// Types of CopyData messages in a stream.
const (
	frameData      = 'w'
	frameKeepalive = 'k'
	frameStatus    = 'r'
)

const (
	dataHeaderLen = 1 + 8 + 8 + 8
	keepaliveLen  = 1 + 8 + 8 + 1
	statusLen     = 1 + 8 + 8 + 8 + 8 + 1
)

// parseFrame parses the body of a CopyData message. Data aliases it.
func parseFrame(body []byte) (Frame, error) {
	switch {
	case len(body) >= dataHeaderLen && body[0] == frameData:
		return Frame{
			Data:   body[dataHeaderLen:],
			Start:  LSN(binary.BigEndian.Uint64(body[1:])),
			End:    LSN(binary.BigEndian.Uint64(body[9:])),
			SentAt: protocolTime(int64(binary.BigEndian.Uint64(body[17:]))),
		}, nil
	case len(body) == keepaliveLen && body[0] == frameKeepalive:
		return Frame{
			End:            LSN(binary.BigEndian.Uint64(body[1:])),
			SentAt:         protocolTime(int64(binary.BigEndian.Uint64(body[9:]))),
			ReplyRequested: body[17] != 0,
		}, nil
	}
	return Frame{}, fmt.Errorf("stream frame of %d bytes: %w", len(body), pgwire.ErrMalformed)
}

// appendStatus appends a standby status update.
func appendStatus(dst []byte, p Position, now time.Time, ask bool) []byte {
	dst = append(dst, frameStatus)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.Written))
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.Flushed))
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.Applied))
	dst = binary.BigEndian.AppendUint64(dst, uint64(protocolMicros(now)))
	if ask {
		return append(dst, 1)
	}
	return append(dst, 0)
}
