package dist_test

import (
	"testing"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/dist/disttest"
)

func TestLocal(t *testing.T) {
	disttest.Run(t, func(_ *testing.T, size int, o dist.Options) []dist.Group { return dist.Local(size, o) })
}
