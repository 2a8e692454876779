package proxybench

import (
	"bytes"
	"testing"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestMySQLGroupsReadWhatTheServerSays has each answer come byte by byte: it is taken when it
// is whole, and only then.
func TestMySQLGroupsReadWhatTheServerSays(t *testing.T) {
	rows := bytes.Repeat([]byte{7}, 3*16)
	prepared := mywire.AppendPrepared(nil, 1, mywire.Prepared{StmtID: 9, Params: 6})
	for i := range byte(6) {
		prepared = append(prepared, 1, 0, 0, 2+i, 'p')
	}
	for _, tc := range []struct {
		name  string
		binds bool
		knows uint32
		said  []byte
		next  []byte // what the server is to be sent then
		fails bool
		id    uint64
	}{
		{name: "rows as text", said: mywire.AppendOK(nil, 1, 0, &mywire.OK{AffectedRows: 3, LastInsertID: 300, Info: []byte("Records: 3")}), id: 300},
		{name: "prepared rows", binds: true, knows: 9, said: mywire.AppendOK(nil, 1, 0, &mywire.OK{AffectedRows: 3, LastInsertID: 1}), id: 1},
		{name: "a row is missing", said: mywire.AppendOK(nil, 1, 0, &mywire.OK{AffectedRows: 2, LastInsertID: 300}), fails: true},
		{name: "an error", said: mywire.AppendError(nil, 1, mywire.NewError(mywire.ErrDuplicateKey, "Duplicate entry")), fails: true},
		{name: "a statement is prepared", binds: true, said: prepared, next: appendRows(nil, 9, rows, 3)},
	} {
		l := &groupLane{
			texts: &groupTexts{binds: tc.binds, epoch: 1}, members: []int32{1, 2, 3}, rows: rows,
			knows: map[groupKey]uint32{{1, 3}: tc.knows},
		}
		var p mysqlGroups
		for i, b := range tc.said {
			l.in = append(l.in, b)
			next, done, err := p.said(l)
			if whole := i == len(tc.said)-1; !whole {
				if done || next != nil || err != nil {
					t.Errorf("%s: done %v, %d bytes to send, %v after %d bytes of %d", tc.name, done, len(next), err, i+1, len(tc.said))
				}
				continue
			}
			if done != (tc.next == nil) || (err != nil) != tc.fails || !bytes.Equal(next, tc.next) || l.id != tc.id {
				t.Errorf("%s: done %v, %x to send, id %d, %v", tc.name, done, next, l.id, err)
			}
		}
	}
}
