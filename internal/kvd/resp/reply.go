package resp

import (
	"sync/atomic"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Reply is the reply to a command, in the order of its connection. Done completes it, once;
// before and after that the connection owns it.
type Reply struct {
	done   atomic.Bool
	result [1]wire.Result // an array, so that shapes always get a slice
	err    error

	answer answer
	parts  []answer // of a transaction: the answers to its commands
	proto  uint8    // the protocol version when the command was sent
	read   bool     // the client may cache what it reads: it is tracked
	conn   *conn    // the connection that it belongs to; nil in tests
	size   int      // size of the answer, once counted; guarded by conn.mu
	cost   int      // size of the command, and of the answer as far as known in advance
}

// Done completes the reply with err or else result, whose memory must not change any more. The
// client gets it after the next Flush at the latest.
func (r *Reply) Done(result wire.Result, err error) {
	r.result[0], r.err = result, err
	if r.done.Swap(true) {
		panic("resp: a reply was completed twice")
	}
}

// Outcome returns what Done was called with; done is false until then.
func (r *Reply) Outcome() (result wire.Result, done bool, err error) {
	if !r.done.Load() {
		return wire.Result{}, false, nil
	}
	return r.result[0], true, r.err
}

// keepText is how much memory for local answers a reused reply keeps.
const keepText = 1 << 10

// reset prepares r for another command.
func (r *Reply) reset() {
	text := r.answer.text[:0]
	if cap(text) > keepText {
		text = nil
	}
	r.done.Store(false)
	r.result[0], r.err, r.parts, r.size = wire.Result{}, nil, nil, 0
	r.answer = answer{text: text}
}

// answer is the answer to a command: a text, which is known when the command is parsed, or a
// shape, which renders the results of n commands of the store.
type answer struct {
	text  []byte
	shape shape
}

// shape renders results as RESP.
type shape struct {
	render func(e *encoder, s *shape, r []wire.Result)
	n      int // number of results; more than one come from a transaction
	a, b   int64
	extra  any
}

// render appends the whole reply.
func (r *Reply) render(e *encoder) {
	e.proto = r.proto
	switch {
	case r.err != nil:
		e.fail(errorText(r.err))
	case r.parts != nil:
		r.renderParts(e)
	case r.answer.shape.render == nil:
		e.raw(r.answer.text)
	case r.answer.shape.n > 1:
		if len(r.result[0].Results) != r.answer.shape.n {
			e.fail(textOf(&r.result[0]))
			return
		}
		r.answer.shape.renderResults(e, r.result[0].Results)
	default:
		r.answer.shape.renderResults(e, r.result[:])
	}
}

// renderParts answers EXEC.
func (r *Reply) renderParts(e *encoder) {
	result := &r.result[0]
	if result.Code == wire.NotMet {
		e.nullArray()
		return
	}
	want := 0
	for i := range r.parts {
		want += r.parts[i].shape.n
	}
	if result.Code != wire.OK || len(result.Results) != want {
		e.fail(textOf(result))
		return
	}
	e.array(len(r.parts))
	results := result.Results
	for i := range r.parts {
		p := &r.parts[i]
		if p.shape.render == nil {
			e.b = append(e.b, p.text...)
			continue
		}
		p.shape.renderResults(e, results[:p.shape.n])
		results = results[p.shape.n:]
	}
}

// renderResults renders the results, or the error if one of them is an error. The shape renders codes
// that are answers.
func (s *shape) renderResults(e *encoder, results []wire.Result) {
	for i := range results {
		if c := results[i].Code; c == wire.WrongType || c == wire.TooLarge || c == wire.Malformed {
			e.fail(textOf(&results[i]))
			return
		}
	}
	s.render(e, s, results)
}
