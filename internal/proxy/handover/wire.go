package handover

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Each side begins with a preamble, which is the same in all versions: magic, and the
// lowest and the highest version that it speaks. The highest common one is used.
const (
	magic       = "weir-handover:"
	preambleLen = len(magic) + 2
)

// The versions of the protocol that this program speaks.
const (
	lowestVersion  = 1
	highestVersion = 1
)

// A kind is the type of a frame: one byte, followed by the length of the rest in four.
type kind byte

const (
	kindSocket   kind = 'S' // a listening socket, with its descriptor
	kindLegacy   kind = 'L' // what is known of logins
	kindOffered  kind = 'O' // end of the offer
	kindRefused  kind = 'R' // not now
	kindTake     kind = 'T' // the next process is ready
	kindGo       kind = 'G' // it may accept clients
	kindClient   kind = 'C' // a client, with its descriptor
	kindReceipt  kind = 'A' // what has become of a client
	kindQuestion kind = 'Q' // about a client that the next process does not have
	kindAnswer   kind = 'B'
	kindDone     kind = 'D' // no more clients
)

// The payloads of frames, encoded by encoding/gob: a field that only one program knows is
// no error.
type (
	socket struct{ Role, Address string }
	legacy struct {
		Role string
		Data []byte
	}
	offered struct {
		PID     int
		Version string // of the program
	}
	refused struct{ Why string }
	take    struct{ Roles []string } // whose sockets the next process listens on
	client  struct {                 // the session follows, as the side encodes it
		Seq  uint64
		Role string
	}
	receipt struct {
		Seq   uint64
		Ended string // why the session was ended
		Kept  string // why it stays where it was; if both are "", it is served
	}
	question struct {
		Seq  uint64
		Role string
		Data []byte
	}
	answer struct {
		Seq  uint64
		Data []byte
	}
)

// maxFrame bounds a frame. A session is far smaller: see Parcel.
const maxFrame = 256 << 20

const headerLen = 5

// A wire is the connection of two processes. One goroutine may receive while others send.
type wire struct {
	conn *net.UnixConn
	// patience bounds each send. Default: 0, for as long as it takes.
	patience time.Duration

	sending sync.Mutex
	out     bytes.Buffer // guarded by sending
	enc     *gob.Encoder // guarded by sending

	in  bytes.Buffer
	dec *gob.Decoder
	fds []int // received with the last frame
}

func newWire(conn *net.UnixConn) *wire {
	w := &wire{conn: conn}
	w.enc, w.dec = gob.NewEncoder(&w.out), gob.NewDecoder(&w.in)
	return w
}

// close ends the connection.
func (w *wire) close() {
	w.closeFDs()
	_ = w.conn.Close()
}

func (w *wire) closeFDs() {
	for _, fd := range w.fds {
		_ = unix.Close(fd)
	}
	w.fds = nil
}

// errForeign is the error of a hand-over between processes of different users.
var errForeign = errors.New("the process at the other end belongs to another user")

// peer checks that the other process runs as the same user, and returns its id.
func (w *wire) peer() (pid int, err error) {
	rc, err := w.conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := rc.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, os.NewSyscallError("getsockopt SO_PEERCRED", credErr)
	}
	if int(cred.Uid) != os.Getuid() {
		return 0, fmt.Errorf("%w (%d, want %d)", errForeign, cred.Uid, os.Getuid())
	}
	return int(cred.Pid), nil
}

// agree exchanges preambles.
func (w *wire) agree(patience time.Duration) error {
	_ = w.conn.SetDeadline(time.Now().Add(patience))
	defer func() { _ = w.conn.SetDeadline(time.Time{}) }()
	if _, err := w.conn.Write(append([]byte(magic), lowestVersion, highestVersion)); err != nil {
		return err
	}
	var b [preambleLen]byte
	if _, err := io.ReadFull(w.conn, b[:]); err != nil {
		return err
	}
	if string(b[:len(magic)]) != magic {
		return errors.New("the process at the other end is no weir proxy that hands over")
	}
	low, high := b[len(magic)], b[len(magic)+1]
	if low > highestVersion || high < lowestVersion {
		return fmt.Errorf("the other process speaks versions %d to %d of the hand-over, this one %d to %d: end the running one as before, and start the new one", low, high, lowestVersion, highestVersion)
	}
	return nil
}

// send writes a frame of values, with a descriptor unless fd is -1.
func (w *wire) send(k kind, fd int, values ...any) error {
	w.sending.Lock()
	defer w.sending.Unlock()
	w.out.Reset()
	for _, v := range values {
		if err := w.enc.Encode(v); err != nil {
			return fmt.Errorf("%w: %T: %w", errEncode, v, err)
		}
	}
	if w.patience > 0 {
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.patience))
	}
	var head [headerLen]byte
	head[0] = byte(k)
	binary.LittleEndian.PutUint32(head[1:], uint32(w.out.Len()))
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	if _, _, err := w.conn.WriteMsgUnix(head[:], rights, nil); err != nil || w.out.Len() == 0 {
		return err // the other process may close the connection after a last frame
	}
	_, err := w.conn.Write(w.out.Bytes())
	return err
}

// receive reads a frame; decode then returns its values.
func (w *wire) receive() (kind, error) {
	if w.in.Len() > 0 {
		return 0, errors.New("a frame was longer than what it was to hold")
	}
	w.closeFDs() // not taken
	var head [headerLen]byte
	for n := 0; n < headerLen; {
		rights := make([]byte, unix.CmsgSpace(4))
		got, gotRights, _, _, err := w.conn.ReadMsgUnix(head[n:], rights)
		if err != nil {
			return 0, err
		}
		if gotRights > 0 {
			if err := w.keep(rights[:gotRights]); err != nil {
				return 0, err
			}
		}
		if got == 0 {
			return 0, io.ErrUnexpectedEOF
		}
		n += got
	}
	n := binary.LittleEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, fmt.Errorf("a frame of %d bytes is longer than %d", n, maxFrame)
	}
	if _, err := io.CopyN(&w.in, w.conn, int64(n)); err != nil {
		return 0, err
	}
	return kind(head[0]), nil
}

// keep extracts descriptors from a control message.
func (w *wire) keep(rights []byte) error {
	msgs, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return err
		}
		w.fds = append(w.fds, fds...)
	}
	return nil
}

// decode returns the next value of the frame.
func (w *wire) decode(v any) error {
	if err := w.dec.Decode(v); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}

// takeFD returns the frame's descriptor, which the caller then owns.
func (w *wire) takeFD() (int, error) {
	if len(w.fds) != 1 {
		return -1, fmt.Errorf("a frame came with %d descriptors, want one", len(w.fds))
	}
	fd := w.fds[0]
	w.fds = nil
	return fd, nil
}

// errEncode is the error of a value that cannot be encoded. Nothing can be sent after it.
var errEncode = errors.New("encode")

// hangsUp reports whether an error means that the other process has ended or closed the
// connection.
func hangsUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}
