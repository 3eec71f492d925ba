"""The BugFix gym as a taskset of verifiers: `vf-eval agentrl-gym-v1` plays it, prime-rl trains on it."""
import verifiers.v1 as vf

import agentrl as arl

__all__ = ['GymTaskset']


class GymData(vf.TaskData):
    row: str


class GymState(vf.State):
    reward: float = 0.0
    over: bool = False


class GymToolset(vf.Toolset[vf.ToolsetConfig, GymState]):
    TOOL_PREFIX = None

    async def setup_task(self, task):
        self.menu = arl.MenuTools()
        self.menu.reset(task.row)

    def after(self, result):
        self.state.reward, self.state.over = self.menu.get_reward(), self.menu._over
        return result

    @vf.tool
    def read(self) -> str:
        """show the source"""
        return self.after(self.menu.read())

    @vf.tool
    def test(self) -> str:
        """run the tests"""
        return self.after(self.menu.test())

    @vf.tool
    def edit(self, op: str) -> str:
        """apply one repair, once"""
        return self.after(self.menu.edit(op))

    @vf.tool
    def submit(self) -> str:
        """finish"""
        return self.after(self.menu.submit())


class GymTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class GymTask(vf.Task[GymData, GymState, GymTaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [GymToolset(config.tools)]

    @vf.stop
    async def submitted(self, trace: vf.Trace) -> bool:
        return trace.state.over

    @vf.reward(weight=1.0)
    async def paid(self, trace: vf.Trace) -> float:
        return trace.state.reward


class GymConfig(vf.TasksetConfig):
    num_tasks: int = 20
    max_turns: int = 6
    seed: int = 0
    task: GymTaskConfig = GymTaskConfig()


class GymTaskset(vf.Taskset[GymTask, GymConfig]):
    def load(self):
        cfg = arl.llm_config('tiny', max_turns=self.config.max_turns, seed=self.config.seed)
        for row in arl.episode_rows(arl.menu_experiment(), cfg, range(self.config.num_tasks)):
            first, second = arl.open_episode(row).messages()
            yield GymTask(GymData(row=row, name=f'row {arl.row_number(row)}', system_prompt=first['content'], prompt=second['content']), self.config.task)


if __name__ == '__main__':
    GymToolset.run()
