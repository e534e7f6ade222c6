from tests.integration.conftest import *
from tests.integration.batch.test_on_a_cluster import *
import corun_pd.router.many as many
async def test_dbg(make_cluster, tmp_path, monkeypatch):
    sizes=[]
    orig=many.ManyGenerations._start
    def st(self, start):
        sizes.append(1+len(start.siblings)); return orig(self,start)
    monkeypatch.setattr(many.ManyGenerations,"_start",st)
    async with make_cluster(slots=256, kv_cache_bytes=None) as cluster, AsyncClient(cluster.address) as client:
        lines=[make_line(f"{i}", model=model_of(cluster), prompt=f"prompt {i//8:04}", max_tokens=8) for i in range(4000)]
        path=write_lines(tmp_path/"in",*lines)
        ans=[]
        async for a in run_job(path, client): ans.append(a)
        loads=await cluster.loads()
        print(sum(l.prefilled_tokens for l in loads)/11/500, len(sizes), {s:sizes.count(s) for s in set(sizes)})
