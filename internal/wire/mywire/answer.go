package mywire

import (
	"encoding/binary"
	"fmt"
)

// Event is the reason for which Answer.Feed has stopped.
type Event uint8

// The events.
const (
	EventMore   Event = iota // all bytes are consumed and the answer goes on
	EventResult              // a result has ended, and another one follows
	EventDone                // the answer has ended
	EventInfile              // the server requests a file from the client (LOAD DATA LOCAL INFILE)
	EventAuth                // the server requests authentication data from the client (COM_CHANGE_USER)
)

// Answer parses the server's answer to one command, and finds its end. It is fed bytes as they
// come, split anywhere, and copies only those of a packet that matters (OK, ERR, EOF and the
// like) and is split. It skips rows and column definitions by their length and first byte.
//
//	a.Reset(command, caps)
//	for event != EventDone {
//		n, event, err = a.Feed(p)
//		p = p[n:] // the first n bytes belong to this answer
//		...
//	}
//
// The accessors return views: they alias p, or memory of the Answer, and are valid until the
// next Feed or Reset. An Answer is reused for one command after the other and keeps its memory.
// It is not safe for concurrent use.
type Answer struct {
	caps    Caps
	command byte
	state   answerState
	seq     byte // of the next packet

	// A packet that is split. All zero between packets.
	header    [HeaderLen + 1]byte // its header and first byte, until they are complete
	have      int                 // bytes in header
	skip      int                 // bytes of it still to come
	keep      bool                // those bytes go to kept
	continued bool                // the next packet continues it (16 MiB)
	kept      []byte
	told      bool // the last event returned views, which are no longer valid
	size      int  // of the current or last packet that is no plain row, header included

	columns int // column definitions still to come
	// outParams: the result holds OUT parameters. An OK follows it, even if MySQL does not
	// announce that after its row.
	outParams bool
	params    int // parameter definitions still to come

	ok       OK
	err      []byte // payload of the ERR
	request  []byte // payload of the request of EventInfile or EventAuth
	prepared Prepared
	rows     uint64
	results  int
}

// answerState says what the next packet can be.
type answerState uint8

const (
	answerDone       answerState = iota
	answerFirst                  // of a result: OK, ERR, a file request, a column count
	answerColumns                // a column definition
	answerColumnsEnd             // the EOF after them
	answerRows                   // a row, or the end of the rows
	answerSimple                 // a single OK, EOF or ERR
	answerString                 // a single packet with any content
	answerPrepared               // of COM_STMT_PREPARE: ERR or a Prepared
	answerParams                 // a parameter definition
	answerParamsEnd              // the EOF after them
	answerFields                 // a column definition of COM_STMT_PREPARE
	answerFieldsEnd              // the EOF after them
	answerAuth                   // OK, ERR, AuthSwitchRequest or AuthMoreData
)

// HasAnswer reports whether the server answers a command.
func HasAnswer(command byte) bool {
	switch command {
	case ComQuit, ComStmtClose, ComStmtSendLongData:
		return false
	}
	return true
}

// Reset prepares a for the answer to a command (one of the Com constants) on a connection with
// the capabilities caps, which must not include CapsUnspoken. If the command took several
// packets, call Resume(NextSeq(packets)) after it.
func (a *Answer) Reset(command byte, caps Caps) {
	*a = Answer{caps: caps, command: command, seq: 1, kept: a.kept[:0]}
	switch command {
	case ComQuery, ComStmtExecute, ComStmtBulkExecute, ComProcessInfo:
		a.state = answerFirst
	case ComStmtPrepare:
		a.state = answerPrepared
	case ComStmtFetch, ComFieldList, ComBinlogDump, ComBinlogDumpGTID, ComTableDump:
		a.state = answerRows
	case ComStatistics:
		a.state = answerString
	case ComChangeUser:
		a.state = answerAuth
	default:
		if HasAnswer(command) {
			a.state = answerSimple
		}
	}
}

// Resume tells a that the client has sent packets within the answer, as EventInfile and
// EventAuth request, and the sequence number of the server's next packet: one more than the
// client's last.
func (a *Answer) Resume(seq byte) { a.seq = seq }

// Feed parses p. n is the number of bytes at the start of p that belong to this answer: all of
// them with EventMore. After other events the caller passes the rest to the next call. An error
// wraps ErrMalformed; the connection is out of step then.
func (a *Answer) Feed(p []byte) (n int, event Event, err error) {
	if a.state == answerDone {
		return 0, EventDone, nil
	}
	if a.told && len(p) > 0 {
		a.told, a.ok.Info, a.ok.State, a.request = false, nil, nil, nil
	}
	for n < len(p) && event == EventMore && err == nil {
		rest := p[n:]
		switch {
		case a.skip > 0:
			k := min(a.skip, len(rest))
			n += k
			event, err = a.pass(rest[:k])
		case a.have > 0 || len(rest) <= HeaderLen:
			var k int
			k, event, err = a.gather(rest)
			n += k
		default:
			head := binary.LittleEndian.Uint32(rest)
			length := int(head & MaxPayload)
			size := HeaderLen + length
			if a.state == answerRows && rest[HeaderLen] < headerEOF && byte(head>>24) == a.seq &&
				uint(length-1) < MaxPayload-1 && !a.continued && size <= len(rest) {
				// A whole row: by far the most frequent packet.
				a.seq++
				a.rows++
				n += size
				continue
			}
			have := rest[HeaderLen:min(size, len(rest))]
			n += HeaderLen + len(have)
			event, err = a.packet(length, byte(head>>24), have)
		}
	}
	return n, event, err
}

// gather collects the header and the first byte of a packet that are split.
func (a *Answer) gather(p []byte) (n int, event Event, err error) {
	for need := HeaderLen; ; need++ {
		k := copy(a.header[a.have:max(need, a.have)], p[n:])
		n, a.have = n+k, a.have+k
		if a.have < need {
			return n, EventMore, nil
		}
		length, seq, _ := Peek(a.header[:])
		if length > 0 && a.have == HeaderLen {
			continue
		}
		have := a.header[HeaderLen:a.have]
		a.have = 0
		event, err = a.packet(length, seq, have)
		return n, event, err
	}
}

// packet begins a packet; have are the bytes of it so far, at least one unless it is empty.
func (a *Answer) packet(length int, seq byte, have []byte) (Event, error) {
	a.size = HeaderLen + length
	matters, err := a.classify(length, seq, have)
	if err != nil {
		return EventMore, err
	}
	if a.skip = length - len(have); a.skip == 0 {
		if matters {
			return a.control(have)
		}
		return EventMore, nil
	}
	if a.keep = matters; matters {
		a.kept = append(a.kept[:0], have...)
	}
	return EventMore, nil
}

// pass continues a packet with some more of its bytes, not beyond its end.
func (a *Answer) pass(p []byte) (Event, error) {
	a.skip -= len(p)
	if !a.keep {
		return EventMore, nil
	}
	a.kept = append(a.kept, p...)
	if a.skip > 0 {
		return EventMore, nil
	}
	a.keep = false
	return a.control(a.kept)
}

// classify processes a packet's header and first byte, and reports whether control needs all of
// it.
func (a *Answer) classify(length int, seq byte, have []byte) (matters bool, err error) {
	isError := len(have) > 0 && have[0] == headerError
	if seq != a.seq && (!isError || a.continued) {
		// An ERR may be older than the command: the server was about to close.
		return false, fmt.Errorf("packet %d of the answer to command %#02x has number %d: %w", a.seq, a.command, seq, ErrMalformed)
	}
	a.seq = seq + 1
	inside := a.continued
	if a.continued = length == MaxPayload; inside {
		return false, nil
	}
	if length == 0 && a.state != answerString {
		return false, fmt.Errorf("empty packet in the answer to command %#02x: %w", a.command, ErrMalformed)
	}
	switch {
	case isError:
		matters = true
	case a.state == answerRows:
		if matters = have[0] == headerEOF && a.isEnd(length); !matters {
			a.rows++
		}
	case a.state == answerColumns:
		if a.columns--; a.columns == 0 {
			a.state = answerColumnsEnd
			if a.caps.Has(CapDeprecateEOF) {
				a.state = answerRows
			}
		}
	case a.state == answerParams:
		a.params--
		matters = a.params == 0
	case a.state == answerFields:
		a.columns--
		matters = a.columns == 0
	default:
		matters = true
	}
	if matters && a.continued {
		return false, fmt.Errorf("packet of 16 MiB in the answer to command %#02x is no row: %w", a.command, ErrMalformed)
	}
	return matters, nil
}

// isEnd distinguishes an end of rows from a row that starts with 0xFE, see IsEnd.
func (a *Answer) isEnd(length int) bool {
	if a.caps.Has(CapDeprecateEOF) {
		return length < MaxPayload
	}
	return length < 9
}

// control processes a packet that matters.
func (a *Answer) control(payload []byte) (Event, error) {
	if a.state == answerString && (len(payload) == 0 || payload[0] != headerError) {
		return a.done()
	}
	if payload[0] == headerError {
		if !IsError(payload) {
			return EventMore, ErrMalformed
		}
		if a.caps.Has(CapProgress) && IsProgress(payload) {
			return EventMore, nil
		}
		a.err = payload
		return a.done()
	}
	switch a.state {
	case answerFirst:
		return a.first(payload)
	case answerColumnsEnd:
		return a.columnsEnd(payload)
	case answerRows:
		return a.end(payload)
	case answerSimple:
		if err := a.take(payload); err != nil {
			return EventMore, err
		}
		return a.done()
	case answerAuth:
		return a.authenticate(payload)
	}
	return a.prepare(payload)
}

func (a *Answer) done() (Event, error) {
	a.state = answerDone
	a.results++
	return EventDone, nil
}

// first processes the first packet of a result.
func (a *Answer) first(payload []byte) (Event, error) {
	switch payload[0] {
	case headerOK:
		return a.end(payload)
	case headerInfile:
		if a.command != ComQuery && a.command != ComStmtExecute { // MariaDB prepares LOAD DATA from 10.6.2 on
			break
		}
		// After the file comes an OK or an ERR, maybe followed by further results.
		a.request, a.told = payload, true
		return EventInfile, nil
	}
	n, rest, ok := ParseLenenc(payload)
	if !ok || n == 0 || n > maxParams || len(rest) != 0 {
		return EventMore, fmt.Errorf("column count: %w", ErrMalformed)
	}
	a.columns, a.state = int(n), answerColumns
	return EventMore, nil
}

// columnsEnd processes the EOF between columns and rows.
func (a *Answer) columnsEnd(payload []byte) (Event, error) {
	if !IsEOF(payload) {
		return EventMore, fmt.Errorf("no EOF behind the column definitions: %w", ErrMalformed)
	}
	a.state = answerRows
	status := Status(binary.LittleEndian.Uint16(payload[3:]))
	a.outParams = status&StatusPSOutParams != 0
	if a.command == ComStmtExecute && status&StatusCursorExists != 0 {
		// The rows stay behind the cursor, and there is no second EOF.
		return a.end(payload)
	}
	return EventMore, nil
}

// end processes the end of a result.
func (a *Answer) end(payload []byte) (Event, error) {
	if err := a.take(payload); err != nil {
		return EventMore, err
	}
	more := a.ok.Status&StatusMoreResults != 0 || a.outParams
	if a.outParams = false; !more || !a.several() {
		return a.done()
	}
	a.results++
	a.state, a.told = answerFirst, true
	return EventResult, nil
}

// several reports whether the command can have several results.
func (a *Answer) several() bool {
	return a.command == ComQuery || a.command == ComStmtExecute || a.command == ComStmtBulkExecute
}

// take parses an OK or EOF.
func (a *Answer) take(payload []byte) (err error) {
	if IsEOF(payload) {
		a.ok = OK{}
		a.ok.Warnings, a.ok.Status, err = ParseEOF(payload)
		return err
	}
	a.ok, err = ParseOK(payload, a.caps)
	return err
}

func (a *Answer) authenticate(payload []byte) (Event, error) {
	switch payload[0] {
	case headerOK:
		if err := a.take(payload); err != nil {
			return EventMore, err
		}
		return a.done()
	case headerEOF, headerAuthMore:
		if len(payload) == 2 && payload[0] == headerAuthMore && payload[1] == authFastDone {
			return EventMore, nil
		}
		a.request, a.told = payload, true
		return EventAuth, nil
	}
	return EventMore, ErrMalformed
}

// prepare processes what matters in the answer to COM_STMT_PREPARE: its first packet, the last
// definition of each list, and the EOF after it.
func (a *Answer) prepare(payload []byte) (Event, error) {
	eof := !a.caps.Has(CapDeprecateEOF)
	switch a.state {
	case answerPrepared:
		var err error
		if a.prepared, err = ParsePrepared(payload); err != nil {
			return EventMore, err
		}
		a.params, a.columns = int(a.prepared.Params), int(a.prepared.Columns)
		a.ok = OK{Warnings: a.prepared.Warnings}
	case answerParams:
		if eof {
			a.state = answerParamsEnd
			return EventMore, nil
		}
	case answerFields:
		if eof {
			a.state = answerFieldsEnd
			return EventMore, nil
		}
	case answerParamsEnd, answerFieldsEnd:
		if !IsEOF(payload) {
			return EventMore, fmt.Errorf("no EOF behind the definitions of a prepared statement: %w", ErrMalformed)
		}
		if err := a.take(payload); err != nil {
			return EventMore, err
		}
	}
	switch {
	case a.params > 0:
		a.state = answerParams
	case a.columns > 0:
		a.state = answerFields
	default:
		return a.done()
	}
	return EventMore, nil
}

// OK returns the packet that ended the last result: an OK, or an EOF (which has Status and
// Warnings only). If the answer ended with an error, it is that of an earlier result.
func (a *Answer) OK() OK { return a.ok }

// ErrorCode returns the number of the error that ended the answer, or 0.
func (a *Answer) ErrorCode() uint16 { return ErrorCode(a.err) }

// Err returns the error that ended the answer, or nil. It allocates.
func (a *Answer) Err() *Error {
	if a.err == nil {
		return nil
	}
	e, err := ParseError(a.err)
	if err != nil {
		return nil // control has checked it
	}
	return e
}

// Prepared returns the answer to COM_STMT_PREPARE.
func (a *Answer) Prepared() Prepared { return a.prepared }

// File returns the name of the file that EventInfile requests.
func (a *Answer) File() []byte {
	if len(a.request) == 0 {
		return nil
	}
	return a.request[1:]
}

// Rows returns the number of rows so far, in all results. For COM_FIELD_LIST it counts columns.
func (a *Answer) Rows() uint64 { return a.rows }

// Tail returns the length in bytes, header included, of the packet for which EventResult or
// EventDone was returned: the last bytes of the answer so far.
func (a *Answer) Tail() int { return a.size }

// Held returns how many of the bytes fed last belong to an incomplete packet that may end a
// result. A caller that passes an answer on can hold them back until it knows the packet's
// content.
func (a *Answer) Held() int {
	if a.keep {
		return HeaderLen + len(a.kept)
	}
	return a.have
}

// InRows reports whether the answer is among the rows of a result: bytes so far may have been
// sent to the client.
func (a *Answer) InRows() bool { return a.state == answerRows }
