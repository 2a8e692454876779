package inspect

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/kv"
)

func status(id, leader, applied uint64, open bool) replica.Status {
	return replica.Status{Status: consensus.Status{ID: id, Leader: leader, Applied: applied, Open: open}}
}

func TestCheck(t *testing.T) {
	leader, follower := status(1, 1, 9, true), status(2, 1, 8, true)
	down := map[string]error{"db3:7000": errors.New("refused")}
	for _, c := range []struct {
		cluster Cluster
		want    string
	}{
		{Cluster{Replicas: []replica.Status{leader, follower}}, ""},
		{Cluster{Replicas: []replica.Status{follower}}, "no replica that answers leads"},
		{Cluster{Replicas: []replica.Status{status(1, 1, 9, false)}}, "no replica that answers leads"},
		{Cluster{Replicas: []replica.Status{leader, follower}, Down: down}, "1 of 3 replicas do not answer"},
		{Cluster{Down: down}, "no replica that answers leads"},
	} {
		err := c.cluster.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%+v: %v, want %q", c.cluster, err, c.want)
		}
	}
}

func TestNewest(t *testing.T) {
	c := Cluster{Replicas: []replica.Status{status(1, 3, 7, true), status(2, 3, 9, true), status(3, 3, 8, true)}}
	if s, err := c.Newest(); err != nil || s.ID != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := (&Cluster{}).Newest(); err == nil {
		t.Errorf("of no replica: %+v", s)
	}
}

func TestUnreachable(t *testing.T) {
	refused := errors.New("refused")
	c := Unreachable(&kv.UnreachableError{Down: map[string]error{"db1:7000": nil, "db2:7000": refused}})
	if len(c.Down) != 2 || !strings.Contains(c.Down["db1:7000"].Error(), "no connection") || !errors.Is(c.Down["db2:7000"], refused) {
		t.Errorf("%v", c.Down)
	}
}
